"""One serving node: prefills one after the other and before any decode, decodes in one batch."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy
from tools.scaling.cache import Caches, Hit
from tools.scaling.workload import Turn


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds. A decode step takes `step_base + step_sequence * batch`; a prefill a fixed part and its tokens."""

    step_base: float
    step_sequence: float
    prefill_rate: float
    prefill_fixed: float
    # Host pages come over the bus at some 50 GB/s, 5.5 KB a token; a shared store at a tenth of that.
    host_rate: float = 9e6
    l3_rate: float = 9e5

    def step(self, batch: int) -> float:
        return self.step_base + self.step_sequence * batch

    def prefill(self, hit: Hit) -> float:
        return self.prefill_fixed + hit.new / self.prefill_rate + hit.host / self.host_rate + hit.shared / self.l3_rate


@dataclass(slots=True)
class Request:
    turn: Turn
    arrived: float
    done: simpy.Event
    hit: Hit | None = None
    first_token: float = 0.0


class Node:
    """`load` counts what waits or runs. As by the engine's default, decodes stand still while a prompt is prefilled."""

    def __init__(self, env: simpy.Environment, costs: Costs, caches: Caches) -> None:
        self._env, self._costs, self.caches = env, costs, caches
        self._waiting: deque[Request] = deque()
        self._decoding: list[tuple[float, int, Request]] = []
        self._decoded = 0.0
        self._numbers = 0
        self._arrival = env.event()
        self.load = 0
        env.process(self._run())

    def submit(self, turn: Turn) -> Request:
        request = Request(turn, self._env.now, self._env.event())
        self.load += 1
        self._waiting.append(request)
        if not self._arrival.triggered:
            self._arrival.succeed()
        return request

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            if self._waiting and self._admits(self._waiting[0].turn):
                yield from self._prefill(self._waiting.popleft())
            elif self._decoding:
                yield from self._decode()
            else:
                yield self._next_arrival()

    def _next_arrival(self) -> simpy.Event:
        if self._arrival.triggered:
            self._arrival = self._env.event()
        return self._arrival

    def _admits(self, turn: Turn) -> bool:
        held = self.caches.gpu.length(turn.chain)
        return not self._decoding or self.caches.gpu.fits(turn.prompt + turn.output - held)

    def _prefill(self, request: Request) -> Generator[simpy.Event, Any, None]:
        turn = request.turn
        request.hit = self.caches.look_up(turn.chain, turn.shared, turn.prompt)
        self.caches.branch(turn.chain, turn.shared)
        self.caches.gpu.pin(turn.chain)
        self.caches.store(turn.chain, turn.prompt)
        yield self._env.timeout(self._costs.prefill(request.hit))
        request.first_token = self._env.now - request.arrived
        self._numbers += 1
        heapq.heappush(self._decoding, (self._decoded + turn.output, self._numbers, request))

    def _decode(self) -> Generator[simpy.Event, Any, None]:
        """Until the first sequence ends or a prompt arrives."""
        step, began = self._costs.step(len(self._decoding)), self._env.now
        left = (self._decoding[0][0] - self._decoded) * step
        # A prompt that waits for memory is admitted by an end, not by an arrival.
        wake = [self._env.timeout(left)] + ([] if self._waiting else [self._next_arrival()])
        yield self._env.any_of(wake)
        self._decoded += (self._env.now - began) / step
        while self._decoding and self._decoding[0][0] <= self._decoded + 1e-9:
            self._finish(heapq.heappop(self._decoding)[2])

    def _finish(self, request: Request) -> None:
        turn = request.turn
        self.caches.store(turn.chain, turn.prompt + turn.output)
        self.caches.gpu.unpin(turn.chain)
        self.load -= 1
        request.done.succeed()
