"""How every request ended. Allowed are a right answer, a cancel of the client's, and an error that says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

End = Literal["right", "cancelled", "told", "wrong", "lost"]
ALLOWED: tuple[End, ...] = ("right", "cancelled", "told")
UNDISTURBED: tuple[End, ...] = ("right", "cancelled")
"""Where nothing fails on purpose, an error is a finding, too."""
KEPT = 20


@dataclass
class Ledger:
    """Counts of ends; `refused` are attempts that were told to come back, and did. `findings` explain the others."""

    allowed: tuple[End, ...] = ALLOWED
    ends: Counter[End] = field(default_factory=Counter)
    refused: int = 0
    findings: list[str] = field(default_factory=list)

    def note(self, end: End, detail: str = "") -> None:
        self.ends[end] += 1
        if end not in self.allowed and len(self.findings) < KEPT:
            self.findings.append(f"{end}: {detail}")

    @property
    def requests(self) -> int:
        return sum(self.ends.values())

    @property
    def forbidden(self) -> Counter[End]:
        """Ends that are not allowed, all of them; `findings` has the first KEPT."""
        return Counter({end: count for end, count in self.ends.items() if end not in self.allowed})
