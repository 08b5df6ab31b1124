"""A run in figures: throughput, percentiles of the times, hit rates expected and measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dsv4_serve.bench.session import Session, Target

QUANTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """In milliseconds."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """The nearest rank: a value that really occurred. ValueError for no value."""
        ordered = sorted(seconds)
        if not ordered:
            raise ValueError("percentiles of nothing")
        return cls(*(1e3 * ordered[math.ceil(q / 100 * len(ordered)) - 1] for q in QUANTILES))


@dataclass(frozen=True, slots=True)
class Summary:
    """One row. Tokens a second and GPU count prompt and output together, as published runs do; rates are shares.

    `hit_expected` is what a cache without limits would have had, `hit_measured` what the answers say, `hit_gpu` and
    `hit_host` what the server's counters say of each tier.
    """

    target: str
    concurrency: int
    requests: int
    seconds: float
    tokens_per_second_gpu: float
    output_tokens_per_second_gpu: float
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    latency_ms: Percentiles
    prompt_tokens: float
    output_tokens: float
    hit_expected: float
    hit_measured: float
    hit_gpu: float | None
    hit_host: float | None
    capacity_tokens: float | None

    def describe(self) -> dict[str, Any]:
        return asdict(self)


def summarise(target: Target, session: Session) -> Summary:
    """Lengths are means over the requests."""
    records, counters = session.records, session.counters
    prompt = sum(record.prompt_tokens for record in records)
    output = sum(record.output_tokens for record in records)
    per_gpu = session.seconds * target.gpus
    return Summary(
        target.name,
        session.concurrency,
        len(records),
        session.seconds,
        (prompt + output) / per_gpu,
        output / per_gpu,
        Percentiles.of([record.to_first for record in records]),
        Percentiles.of([record.per_output_token for record in records]),
        Percentiles.of([record.total for record in records]),
        prompt / len(records),
        output / len(records),
        sum(record.expected_cached for record in records) / prompt,
        sum(record.cached_tokens for record in records) / prompt,
        counters.hit_rate("gpu") if counters else None,
        counters.hit_rate("host") if counters else None,
        counters.capacity_tokens if counters else None,
    )
