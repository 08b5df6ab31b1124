"""Why an engine stopped serving: one of a few causes, each with its label in the metrics, and the words for people."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from dsv4_serve.supervisor import Death

Cause = Literal[
    "crash",
    "killed",
    "out_of_memory",
    "device_memory",
    "hang",
    "reported_dead",
    "slow_start",
    "not_effective",
    "selftest_failed",
    "port_in_use",
    "disk_full",
    "weights_unreadable",
    "rank_lost",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

# What an engine writes last before it exits by itself, first match wins. Each pattern is the operating system's or a
# library's own wording, so that it holds for every engine.
_LAST_WORDS: tuple[tuple[re.Pattern[str], Cause], ...] = (
    (re.compile(r"address already in use", re.IGNORECASE), "port_in_use"),
    (re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE), "disk_full"),
    (re.compile(r"out ?of ?memory", re.IGNORECASE), "device_memory"),
    (re.compile(r"safetensor|error while deserializing", re.IGNORECASE), "weights_unreadable"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """`cause` is for metrics and decisions, `reason` is one line for people."""

    cause: Cause
    reason: str


def of_death(death: Death, killed_for_memory: bool) -> Failure:
    """The failure behind an exit or a signal; `killed_for_memory`: the kernel's OOM killer took a process of it."""
    if killed_for_memory:
        return Failure("out_of_memory", f"{death}: the kernel's out-of-memory killer ended it; its memory limit is low")
    if death.returncode < 0:
        return Failure("killed", str(death))
    for line in reversed(death.tail):
        for pattern, cause in _LAST_WORDS:
            if pattern.search(line):
                return Failure(cause, f"{death.how}: {line}")
    return Failure("crash", str(death))
