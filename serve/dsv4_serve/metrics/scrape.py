"""Reads the engine's metrics when somebody reads ours."""

from __future__ import annotations

import asyncio

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.engines.client import EngineUnreachableError
from dsv4_serve.front import Front
from dsv4_serve.logs import log
from dsv4_serve.metrics.exposition import MetricsError, exposition
from dsv4_serve.ranks.merge import merge


async def engine_families(front: Front) -> list[Metric]:
    """The engine's families, those of all ranks as one: the maximum, or the sum where ranks share the requests."""
    own = await own_engine_families(front)
    others = [text_string_to_metric_families(text) for text in front.company.metrics().values()]
    return merge([own, *others], "sum" if front.settings.profile.dp > 1 else "max") if others else own


async def own_engine_families(front: Front) -> list[Metric]:
    """This machine's; none while its engine cannot be reached, so that they are absent rather than stale."""
    try:
        return list(front.adapter.translate(await front.client.get_text("/metrics")))
    except EngineUnreachableError as error:
        log.debug("the engine's metrics cannot be read: %s", error)
    except MetricsError as error:
        front.metrics.refused.inc()
        # Scrapes repeat for ever; the counter keeps the number, the log needs the reason once.
        if str(error) not in front.told:
            front.told.add(str(error))
            log.error("the engine's metrics are refused: %s", error)
    return []


async def scrape(front: Front) -> bytes:
    """The exposition of the launcher and its engine together."""
    families = await engine_families(front)
    front.metrics.tasks.set(len(asyncio.all_tasks()))
    front.metrics.engine_up.set(front.lifecycle.ready)
    return exposition(front.metrics.registry, families)
