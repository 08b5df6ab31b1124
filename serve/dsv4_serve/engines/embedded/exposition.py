"""The engine's `/metrics`: counters of `statistics.py` and the state of pools, queues and kernels at scrape time."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dsv4_kernels import counters

from .pools import CachePools
from .radix import RadixCache
from .scheduler import Scheduler
from .statistics import EngineStatistics
from .tiers.cache_tiers import CacheTiers

TIER = "gpu"
"""The tier of the engine's own pools, whatever device they are on: the one that attention reads."""


class StateCollector:
    """Gauges read from the engine's state when Prometheus asks."""

    def __init__(self, pools: CachePools, cache: RadixCache, tiers: CacheTiers, scheduler: Scheduler) -> None:
        self._pools, self._cache, self._tiers, self._scheduler = pools, cache, tiers, scheduler

    def collect(self) -> Iterator[Metric]:
        """Every family of this collector."""
        yield from self._pool_families()
        yield _gauge("dsv4_running_requests", "requests in the engine's batch", len(self._scheduler.running))
        yield _gauge("dsv4_queued_requests", "requests that wait in the engine", len(self._scheduler.waiting))
        yield from _kernel_families()

    def _pool_families(self) -> Iterator[Metric]:
        labels = ["region", "tier"]
        tokens = GaugeMetricFamily("dsv4_kv_capacity_tokens", "tokens that the pool holds", labels=labels)
        size = GaugeMetricFamily("dsv4_kv_capacity_bytes", "bytes that the pool occupies", labels=labels)
        used = GaugeMetricFamily("dsv4_kv_used_tokens", "tokens in the pool, cached ones included", labels=labels)
        idle = GaugeMetricFamily("dsv4_kv_evictable_tokens", "cached tokens that no request holds", labels=labels)
        idle.add_metric(["main", TIER], self._cache.evictable_pages * self._pools.page_tokens)
        each = GaugeMetricFamily("dsv4_kv_bytes_per_token", "bytes of one token in the pool", labels=["region"])
        used_tokens = self._pools.used_tokens()
        for region in self._pools.regions():
            tokens.add_metric([region.name, TIER], region.tokens)
            size.add_metric([region.name, TIER], region.bytes)
            used.add_metric([region.name, TIER], used_tokens[region.name])
            each.add_metric([region.name], region.bytes_per_token)
        for tier in self._tiers.usage():
            used_tokens = self._pools.tokens_of(tier.used, tier.used)
            for region in self._pools.regions_of(tier.groups, tier.groups):
                tokens.add_metric([region.name, tier.name], region.tokens)
                size.add_metric([region.name, tier.name], region.bytes)
                used.add_metric([region.name, tier.name], used_tokens[region.name])
            # Nothing holds a page of a lower tier: what a request needs is copied to the device first.
            idle.add_metric(["main", tier.name], used_tokens["main"])
        yield from (tokens, size, used, idle, each)


def _kernel_families() -> Iterator[Metric]:
    counts = counters.snapshot()
    launches = CounterMetricFamily(
        "dsv4_indexer_launches", "indexer operations launched", labels=["op", "phase", "backend"]
    )
    for (op, phase, backend), value in counts.launches.items():
        launches.add_metric([op, phase, backend], value)
    fallbacks = CounterMetricFamily(
        "dsv4_indexer_fallbacks",
        "operations that another backend than the one asked for serves",
        labels=["op", "reason"],
    )
    for (op, reason), value in counts.fallbacks.items():
        fallbacks.add_metric([op, reason], value)
    yield from (launches, fallbacks)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def exposition(statistics: EngineStatistics) -> str:
    """Prometheus text of everything registered."""
    return generate_latest(statistics.registry).decode()
