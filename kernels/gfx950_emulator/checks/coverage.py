"""Coverage gate: which mnemonics kernels use, and which of them the emulator does not implement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gfx950_emulator.front_end.kernel import Kernel
from gfx950_emulator.isa.decoder import unsupported


@dataclass
class Coverage:
    """Static counts over a set of kernels."""

    mnemonics: Counter[str] = field(default_factory=Counter)
    missing: list[tuple[str, str, str]] = field(default_factory=list)
    """(kernel, instruction text, reason)."""

    @property
    def complete(self) -> bool:
        return not self.missing

    def text(self) -> str:
        """Mnemonics by frequency, then what is missing."""
        lines = [f"{count:6d} {name}" for name, count in self.mnemonics.most_common()]
        lines.append(f"{len(self.mnemonics)} mnemonics, {self.mnemonics.total()} instructions")
        if self.complete:
            lines.append("all implemented")
        for kernel, text, reason in self.missing:
            lines.append(f"NOT IMPLEMENTED in {kernel}: `{text}`: {reason}")
        return "\n".join(lines)


def measure(kernels: Iterable[Kernel]) -> Coverage:
    """Collect the mnemonics of kernels and try to bind each instruction."""
    coverage = Coverage()
    for kernel in kernels:
        coverage.mnemonics.update(instruction.mnemonic for instruction in kernel.instructions)
        coverage.missing += [(kernel.name, i.text, reason) for i, reason in unsupported(kernel)]
    return coverage
