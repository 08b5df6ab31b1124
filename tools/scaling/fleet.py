"""A run of the model: clients, a route, nodes; what it measures once warm."""

from __future__ import annotations

import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy
from tools.scaling import published
from tools.scaling.cache import Caches, Hit, Tier
from tools.scaling.node import Costs, Node
from tools.scaling.routing import Route, round_robin
from tools.scaling.workload import Client, Turn, Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated. `host_ratio`: host tokens for each GPU token (the engine's default is 2); `l3_tokens` is
    shared by all nodes."""

    workload: Workload
    costs: Costs
    gpu_tokens: int
    clients: int
    nodes: int = 1
    host_ratio: float = 0.0
    l3_tokens: int = 0
    hours: float = 3.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """Shares of prompt tokens, tokens a second a GPU (prompt and answer, as the published rows count), seconds."""

    throughput: float
    ttft_median: float
    gpu_hit: float
    host_hit: float
    l3_hit: float
    requests: int

    @property
    def hit(self) -> float:
        return self.gpu_hit + self.host_hit + self.l3_hit


def simulate(setup: Setup, route: Route | None = None) -> Outcome:
    """The second half of the run is measured; the first warms the caches."""
    env = simpy.Environment()
    l3 = Tier(setup.l3_tokens) if setup.l3_tokens else None
    nodes = [Node(env, setup.costs, _caches(setup, l3)) for _ in range(setup.nodes)]
    measured: list[tuple[Turn, Hit, float]] = []
    end = setup.hours * 3600.0
    chosen = route or round_robin()
    for number in range(setup.clients):
        client = Client(setup.workload, number, setup.seed)
        env.process(_replay(env, client, nodes, chosen, end / 2, measured))
    env.run(until=end)
    return _outcome(measured, end / 2, setup.nodes)


def _caches(setup: Setup, l3: Tier | None) -> Caches:
    host = Tier(round(setup.gpu_tokens * setup.host_ratio)) if setup.host_ratio else None
    return Caches(Tier(setup.gpu_tokens), host, l3)


def _replay(
    env: simpy.Environment,
    client: Client,
    nodes: Sequence[Node],
    route: Route,
    warm: float,
    measured: list[tuple[Turn, Hit, float]],
) -> Generator[simpy.Event, Any, None]:
    for turn in client.turns():
        yield env.timeout(turn.gap_seconds)
        request = route(nodes, turn).submit(turn)
        yield request.done
        if env.now > warm and request.hit is not None:
            measured.append((turn, request.hit, request.first_token))


def _outcome(measured: Sequence[tuple[Turn, Hit, float]], seconds: float, nodes: int) -> Outcome:
    prompts = sum(turn.prompt for turn, _, _ in measured)
    tokens = prompts + sum(turn.output for turn, _, _ in measured)
    return Outcome(
        tokens / seconds / (published.GPUS * nodes),
        statistics.median(first for _, _, first in measured),
        sum(hit.gpu for _, hit, _ in measured) / prompts,
        sum(hit.host for _, hit, _ in measured) / prompts,
        sum(hit.shared for _, hit, _ in measured) / prompts,
        len(measured),
    )
