"""What a run found that may not be, by kind, and the exit code that tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tools.chaos.ledger import End, Ledger

Kind = Literal[End, "restarted", "leaked", "memory", "nothing compared"]


@dataclass
class Verdict:
    """`counts` of every finding; `details` explain them, of many like ones the first."""

    counts: Counter[Kind] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    def add(self, kind: Kind, details: Iterable[str]) -> None:
        for detail in details:
            self.counts[kind] += 1
            self.details.append(f"{kind}: {detail}")

    def add_ledger(self, ledger: Ledger) -> None:
        """Requests that ended as they may not; and a run without a right answer, which has shown nothing."""
        for end, count in ledger.forbidden.items():
            self.counts[end] += count
        self.details += ledger.findings
        if not ledger.ends["right"]:
            self.add("nothing compared", [f"none of {ledger.requests} requests got a right answer"])

    def merge(self, other: Verdict, where: str) -> None:
        self.counts += other.counts
        self.details += [f"{where}: {detail}" for detail in other.details]

    @property
    def code(self) -> int:
        """The exit code of the run."""
        return 1 if self.counts else 0

    @property
    def text(self) -> str:
        """Details first, the reason for the exit code last."""
        if not self.counts:
            return "passed: no wrong answer, no lost request, no leak"
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(self.counts.items()))
        return "\n".join([*self.details, f"failed: {told}"])
