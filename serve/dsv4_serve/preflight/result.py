"""The outcome of one check."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Result:
    """`found` is what is there; `accepted` is what would do, empty when the check passed."""

    name: str
    level: Level
    found: str
    accepted: str = ""

    def describe(self) -> dict[str, str]:
        return asdict(self)


def ok(name: str, found: str) -> Result:
    return Result(name, "ok", found)


def fail(name: str, found: str, accepted: str) -> Result:
    return Result(name, "fail", found, accepted)


def require(name: str, passed: bool, found: str, accepted: str) -> Result:
    """A result that fails unless `passed`."""
    return ok(name, found) if passed else fail(name, found, accepted)
