"""Reads the engine's metrics when somebody reads ours."""

from __future__ import annotations

from prometheus_client import Metric

from dsv4_serve.engines.client import EngineUnreachableError
from dsv4_serve.front import Front
from dsv4_serve.logs import log
from dsv4_serve.metrics.exposition import MetricsError, exposition


async def engine_families(front: Front) -> list[Metric]:
    """The engine's families; none while it cannot be reached, so that they are absent rather than stale."""
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
    front.metrics.engine_up.set(front.lifecycle.ready)
    return exposition(front.metrics.registry, families)
