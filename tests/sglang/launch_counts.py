"""Which launches a test made, by the product's own counters: the proof that our kernels ran."""

from __future__ import annotations

from dsv4_kernels import counters


class LaunchCounts:
    """Launches of an operation since this was made."""

    def __init__(self, op: str = "paged_logits") -> None:
        self._op = op
        self._before = counters.snapshot().launches

    def made(self) -> dict[tuple[str, str], int]:
        """Number of launches by (phase, backend)."""
        now = counters.snapshot().launches
        grown = {key: count - self._before.get(key, 0) for key, count in now.items()}
        return {(phase, backend): n for (op, phase, backend), n in grown.items() if op == self._op and n}
