"""What ran and what fell back, for the metrics: every call of an operation is counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

Phase = Literal["decode", "prefill", "verify"]
PHASES: tuple[Phase, ...] = ("decode", "prefill", "verify")


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals since the process started: `launches[op, phase, backend]` and `fallbacks[op, reason]`."""

    launches: dict[tuple[str, str, str], int]
    fallbacks: dict[tuple[str, str], int]


_phase: ContextVar[Phase] = ContextVar("phase", default="decode")
_lock = threading.Lock()
_launches: Counter[tuple[str, str, str]] = Counter()
_fallbacks: Counter[tuple[str, str]] = Counter()


@contextmanager
def counted_as(phase: Phase) -> Iterator[None]:
    """Within it, operations that are not told a phase count as this one: few places know what pass they are part of."""
    before = _phase.set(phase)
    try:
        yield
    finally:
        _phase.reset(before)


def current_phase() -> Phase:
    """What an operation that is not told counts as: decode, outside `counted_as`."""
    return _phase.get()


def count_launch(op: str, phase: str, backend: str) -> None:
    with _lock:
        _launches[op, phase, backend] += 1


def count_fallback(op: str, reason: str) -> None:
    with _lock:
        _fallbacks[op, reason] += 1


def snapshot() -> Counts:
    """A copy of the totals, safe to read from any thread."""
    with _lock:
        return Counts(dict(_launches), dict(_fallbacks))
