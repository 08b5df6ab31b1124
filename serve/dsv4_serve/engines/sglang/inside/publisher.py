"""Brings the measurements of a scheduler to its families, once a second, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook
from dsv4_serve.engines.inside_families import COMPILES, Families
from dsv4_serve.engines.inside_publisher import IndexPublisher, format_labels, publish_every_second
from dsv4_serve.engines.sglang.inside import captures, health, recall_hooks, scoring, work
from dsv4_serve.engines.sglang.inside.regions import Region, device_regions, host_regions

COUNTED_BY_SGLANG = frozenset({"main", "window"})
"""Regions whose tokens SGLang exports itself, with what of them is used."""

log = logging.getLogger("sglang.dsv4")


class Publisher:
    """What one scheduler exports. `publish` may be called from one thread at a time."""

    def __init__(self, families: Families, regions: Sequence[Region], formats: Sequence[dict[str, str]]) -> None:
        self._families = families
        self._index = IndexPublisher(families)
        for region in regions:
            self._region(region)
        for labels in formats:
            families.gauge("dsv4_index_format", 1, **labels)

    def _region(self, region: Region) -> None:
        labels = {"region": region.name, "tier": region.tier}
        self._families.gauge("dsv4_kv_capacity_bytes", region.bytes, **labels)
        if region.name not in COUNTED_BY_SGLANG:
            self._families.gauge("dsv4_kv_capacity_tokens", region.tokens, **labels)
        if region.tier == "gpu":
            self._families.gauge("dsv4_kv_bytes_per_token", region.bytes_per_token, region=region.name)

    def publish(self) -> None:
        """Bring every family up to date."""
        self._index.publish()
        self._families.gauge("dsv4_indexer_workspace_bytes", scoring.workspace_bytes())
        self._families.counter(COMPILES, health.compiles.total())
        with captures.no_capture:
            self._families.counter("dsv4_nonfinite_logits_total", health.non_finite.total())
            self._timing()
            recall_hooks.publish(self._families)

    def _timing(self) -> None:
        scoring.timer.collect()
        for phase, seconds in scoring.timer.seconds.items():
            self._families.counter("dsv4_indexer_seconds_total", seconds, phase=phase)
            launches = scoring.timer.launches[phase]
            self._families.counter("dsv4_indexer_timed_launches_total", launches, phase=phase)


def ranks() -> dict[str, str]:
    """This process's place: its replica (of whole servers, then of attention), pipeline stage and tensor rank."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    replica = f"{parallel.dp_rank or 0}.{parallel.attn_dp_rank or 0}"
    return {"replica": replica, "pp_rank": str(parallel.pp_rank), "tp_rank": str(parallel.tp_rank)}


def publisher_of(scheduler: Any) -> Publisher | None:
    """The publisher of a scheduler; None if it exports nothing or its model has no index."""
    from sglang.srt.runtime_context import get_server_args

    if not get_server_args().enable_metrics:
        return None
    pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
    if not getattr(pool, "index_pools", None):
        return None
    group = getattr(scheduler.tree_cache, "host_pool_group", None)
    regions = [*device_regions(pool), *(host_regions(group.entries) if group is not None else ())]
    return Publisher(Families(ranks()), regions, formats(pool))


def formats(pool: Any) -> list[dict[str, str]]:
    """The labels of dsv4_index_format, one set for each format that the index pools have."""
    from dsv4_serve.engines.sglang import index_format

    return format_labels(index_format.describe(pool).values())


def _publishing(init: Function) -> Function:
    def started(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        health.compiles.watch_triton()
        init(scheduler, *args, **kwargs)
        publisher = publisher_of(scheduler)
        if publisher is not None:
            publish_every_second(publisher.publish, log)

    return started


HOOKS: tuple[Hook, ...] = (
    *captures.HOOKS,
    *work.HOOKS,
    *scoring.HOOKS,
    *health.HOOKS,
    *recall_hooks.HOOKS,
    Hook("sglang.srt.managers.scheduler", "Scheduler.__init__", _publishing, "exports the index path", needed=True),
)
