"""Tells a busy engine from one that hangs: work is there, and nothing that it counts moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from prometheus_client import Metric

Counted = tuple[float, ...]


def counted(families: Iterable[Metric]) -> Counted:
    """Every value that only ever grows: tokens, launches, observations. Equal ones mean that nothing was done."""
    return tuple(
        sample.value
        for family in families
        if family.type in ("counter", "histogram")
        for sample in family.samples
        if sample.name.endswith(("_total", "_count"))
    )


class Progress:
    """Fed with what is seen of an engine; `still` is for how many seconds it has had work and done none of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moved = clock()
        self._last: Counted | None = None
        self.requests = 0

    @property
    def still(self) -> float:
        return self._clock() - self._moved

    def idle(self) -> None:
        """The engine has no work."""
        self._moved, self._last, self.requests = self._clock(), None, 0

    def working(self, requests: int, seen: Counted) -> None:
        """The engine has `requests`, and its counters stand at `seen`."""
        if seen != self._last:
            self._moved, self._last = self._clock(), seen
        self.requests = requests
