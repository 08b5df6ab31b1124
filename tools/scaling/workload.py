"""Agentic clients: sessions whose context grows turn by turn, subagents, prefixes that break, pauses."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tools.scaling import published

MAIN_TURNS = published.MAIN_REQUESTS / published.TRACES
SUBAGENT_TURNS = published.SUBAGENT_REQUESTS / published.SUBAGENT_GROUPS
SUBAGENTS_A_TURN = published.SUBAGENT_GROUPS / published.MAIN_REQUESTS
SUBAGENT_START, SUBAGENT_GROWTH = 30_000, 4_000
MAIN_START = 20_000
LONGEST = 1 << 20
GAP_SIGMA = 1.5


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `shared` tokens of its prompt begin with what its chain's last request left."""

    chain: int
    prompt: int
    shared: int
    output: int
    gap_seconds: float


@dataclass(frozen=True, slots=True)
class Workload:
    """`last_median` and `last_sigma`: log-normal size of a session's last context, which the published lengths fix;
    `breaks`: share of turns whose prompt differs from the last one at a random place (compaction, edited history);
    `gap_seconds`: mean pause between an answer and the next turn (tools, people), log-normal, heavy-tailed."""

    breaks: float
    gap_seconds: float
    last_median: float
    last_sigma: float


class Client:
    """One lane of the replay: session after session, each a chain of its own (the replay salts every session)."""

    def __init__(self, workload: Workload, number: int, seed: int) -> None:
        self._workload = workload
        self._random = random.Random(f"{seed}:{number}")
        self._chain = number << 32

    def turns(self) -> Iterator[Turn]:
        skip = self._random.random()
        while True:
            yield from self._session(skip)
            skip = 0.0

    def _session(self, skip: float) -> Iterator[Turn]:
        last = min(
            LONGEST, self._random.lognormvariate(math.log(self._workload.last_median), self._workload.last_sigma)
        )
        turns = max(2, round(self._random.expovariate(1 / MAIN_TURNS)))
        growth = max(0.0, (last - MAIN_START) / turns)
        # A replay starts inside its first session, so that the caches do not warm up in step.
        first = int(skip * turns)
        begun = int(MAIN_START + growth * first)
        for turn in self._chain_turns(begun, growth, turns - first):
            yield turn
            if self._random.random() < SUBAGENTS_A_TURN:
                yield from self._chain_turns(SUBAGENT_START, SUBAGENT_GROWTH, round(SUBAGENT_TURNS))

    def _chain_turns(self, start: int, growth: float, turns: int) -> Iterator[Turn]:
        self._chain += 1
        chain, context, known = self._chain, float(start), 0
        for _ in range(turns):
            shared = known
            if known and self._random.random() < self._workload.breaks:
                shared = int(known * self._random.random())
            output = max(1, round(self._random.expovariate(1 / published.OUTPUT_TOKENS)))
            gap = self._random.lognormvariate(math.log(self._workload.gap_seconds) - GAP_SIGMA**2 / 2, GAP_SIGMA)
            yield Turn(chain, int(context), shared, output, gap)
            known = int(context) + output
            context = max(known + 1.0, context + self._random.expovariate(1 / max(1.0, growth)))


def fit_lengths(sessions: int = 2000, seed: int = 1) -> tuple[float, float]:
    """(last_median, last_sigma) whose requests fall into the published buckets best: least squares of the shares."""
    total = sum(count for _, count in published.CONTEXT_BUCKETS)
    wanted = np.array([count / total for _, count in published.CONTEXT_BUCKETS])
    candidates = [(1000.0 * kilo, sigma / 20) for kilo in range(120, 720, 20) for sigma in range(8, 31)]

    def distance(candidate: tuple[float, float]) -> float:
        last_median, last_sigma = candidate
        return float(np.linalg.norm(bucket_shares(last_median, last_sigma, sessions, seed) - wanted))

    return min(candidates, key=distance)


def bucket_shares(
    last_median: float, last_sigma: float, sessions: int = 2000, seed: int = 1
) -> npt.NDArray[np.float64]:
    """Share of requests in each published bucket, subagents included; float64 [buckets]."""
    rng = np.random.default_rng(seed)
    last = np.minimum(LONGEST, rng.lognormal(math.log(last_median), last_sigma, sessions))
    main = MAIN_START + rng.random(sessions) * np.maximum(0.0, last - MAIN_START)
    sub = SUBAGENT_START + SUBAGENT_GROWTH * SUBAGENT_TURNS * rng.random(sessions)
    edges = [0, *(bound for bound, _ in published.CONTEXT_BUCKETS)]
    counts = published.MAIN_REQUESTS * np.histogram(main, edges)[0].astype(np.float64)
    counts += published.SUBAGENT_REQUESTS * np.histogram(sub, edges)[0]
    shares: npt.NDArray[np.float64] = counts / counts.sum()
    return shares
