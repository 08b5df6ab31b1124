"""Timing of workloads: graphs of whole units, replayed interleaved with each other backend's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from dsv4_kernels import backends
from dsv4_kernels.bench.inputs import Inputs
from dsv4_kernels.bench.replay import Launch, Replay, Timing, interleaved
from dsv4_kernels.bench.workload import Workload
from dsv4_kernels.errors import ArgumentError, BackendUnavailableError

Timer = Callable[[dict[str, tuple[Launch, int]]], dict[str, Timing]]
"""Times candidates: a launch of unit i, and how many units there are. On a GPU `time_in_graphs`."""


@dataclass(frozen=True, slots=True)
class Result:
    """A workload on a backend: microseconds a unit, or why there are none."""

    workload: Workload
    backend: str
    timing: Timing | None = None
    error: str = ""


def time_in_graphs(candidates: dict[str, tuple[Launch, int]]) -> dict[str, Timing]:
    return interleaved({name: Replay(launch, units) for name, (launch, units) in candidates.items()})


def measure(
    workloads: Sequence[Workload],
    names: Sequence[str],
    device: torch.device | str = "cuda",
    timer: Timer = time_in_graphs,
    set_bytes: int | None = None,
) -> Iterator[Result]:
    """A result for every workload and backend of `names`; a backend that cannot serve gives its reason."""
    for workload in workloads:
        inputs = Inputs.make(workload, device) if set_bytes is None else Inputs.make(workload, device, set_bytes)
        candidates, refused = {}, {}
        for name in names:
            launch = _launch(name, inputs)
            try:
                launch(0)
            except (ArgumentError, BackendUnavailableError, ImportError) as error:
                refused[name] = f"{type(error).__name__}: {error}"
            else:
                candidates[name] = (launch, len(inputs.units))
        timings = timer(candidates)
        yield from (Result(workload, name, timings.get(name), refused.get(name, "")) for name in names)


def _launch(name: str, inputs: Inputs) -> Launch:
    implementation = backends.load(name)

    def unit(number: int) -> object:
        for call in inputs.units[number % len(inputs.units)]:
            implementation.paged_logits(call)
        return None

    return unit
