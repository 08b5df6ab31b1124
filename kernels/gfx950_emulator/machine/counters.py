"""What a launch did: executed instructions, bytes moved, divergence."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Counters:
    """Counts over all waves of a launch."""

    executed: list[int] = field(default_factory=list)
    """Wave-instructions by instruction index."""
    global_bytes_read: int = 0
    global_bytes_written: int = 0
    lds_bytes_read: int = 0
    lds_bytes_written: int = 0
    divergent_branches: int = 0
    """Conditional branches executed by a wave while EXEC held some but not all of its launched lanes."""
    barriers: int = 0

    @property
    def wave_instructions(self) -> int:
        return sum(self.executed)
