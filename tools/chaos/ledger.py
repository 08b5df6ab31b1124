"""How every request ended. Allowed are a right answer, a cancel of the client's, and an error that says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

End = Literal["right", "cancelled", "told", "wrong", "lost"]
ALLOWED: tuple[End, ...] = ("right", "cancelled", "told")
KEPT = 20


@dataclass
class Ledger:
    """Counts of ends; `refused` are attempts that were told to come back, and did. `findings` explain the others."""

    ends: Counter[End] = field(default_factory=Counter)
    refused: int = 0
    findings: list[str] = field(default_factory=list)

    def note(self, end: End, detail: str = "") -> None:
        self.ends[end] += 1
        if end not in ALLOWED and len(self.findings) < KEPT:
            self.findings.append(f"{end}: {detail}")

    @property
    def requests(self) -> int:
        return sum(self.ends.values())

    def add(self, other: Ledger) -> None:
        self.ends += other.ends
        self.refused += other.refused
        self.findings += other.findings
