"""Times of kernels in CUDA graphs: interleaved repeats, medians and spread."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch

Launch = Callable[[int], object]
"""Enqueues one launch on the current stream; the number picks one of several input sets."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds a launch: the median of the repeats' medians, their least and most, and how many there were."""

    us: float
    low: float
    high: float
    repeats: int


@dataclass
class Replay:
    """`count` launches captured once. Holds `launch`, and with it every tensor that the graph reads."""

    launch: Launch
    count: int
    graph: torch.cuda.CUDAGraph = field(default_factory=torch.cuda.CUDAGraph)
    medians: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for i in range(min(self.count, 2)):
                self.launch(i)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            for i in range(self.count):
                self.launch(i)
        for _ in range(2):
            self.graph.replay()
        torch.cuda.synchronize()

    def sample(self, replays: int) -> None:
        """One repeat: the median over `replays`."""
        pairs = []
        for _ in range(replays):
            begin, end = _event(), _event()
            begin.record()
            self.graph.replay()
            end.record()
            pairs.append((begin, end))
        torch.cuda.synchronize()
        self.medians.append(median(a.elapsed_time(b) * 1e3 / self.count for a, b in pairs))

    def timing(self) -> Timing:
        return Timing(median(self.medians), min(self.medians), max(self.medians), len(self.medians))

    def sustained(self, seconds: float) -> float:
        """Microseconds a launch in the second half of a loop without gaps, where the card's power limit binds."""
        self._loop(seconds / 2)
        return self._loop(seconds / 2)

    def _loop(self, seconds: float) -> float:
        begin, end = _event(), _event()
        launches, stop = 0, time.monotonic() + seconds
        begin.record()
        while time.monotonic() < stop:
            for _ in range(20):
                self.graph.replay()
            launches += 20 * self.count
            torch.cuda.current_stream().synchronize()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / launches


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def interleaved(candidates: dict[str, Replay], repeats: int = 5, replays: int = 10) -> dict[str, Timing]:
    """Every candidate in turn, `repeats` times, so that drifting clocks meet all of them."""
    for _ in range(repeats):
        for replay in candidates.values():
            replay.sample(replays)
    return {name: replay.timing() for name, replay in candidates.items()}
