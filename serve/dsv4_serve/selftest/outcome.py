"""What a probe found: passed, failed with what differs, or not run with the reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["passed", "failed", "not run"]


class ProbeFailed(Exception):
    """A probe found an error; the message says where, what was expected and what was found."""


class NotRun(Exception):
    """A probe cannot be asked of this model or format; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One probe's result. `detail` is what it looked at, what differs, or why it was not run."""

    probe: str
    status: Status
    detail: str
    seconds: float

    def describe(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def line(self) -> str:
        return f"{self.status:<8}  {self.probe:<20}  {self.seconds:6.1f} s  {self.detail}"
