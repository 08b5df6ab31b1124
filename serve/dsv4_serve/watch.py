"""The watch over an engine that serves: does it answer, does it say that it is dead, does its work move on?

Neither question costs the engine a generation. One token is asked for where requests are there and nothing that the
engine counts has moved for half of what counts as a hang: one that still generates is not started again.
"""

from __future__ import annotations

import asyncio

from dsv4_serve.engines.client import EngineUnreachableError
from dsv4_serve.engines.first_generation import generate_once
from dsv4_serve.failure import Failure
from dsv4_serve.front import Front
from dsv4_serve.logs import log
from dsv4_serve.metrics.exposition import MetricsError
from dsv4_serve.progress import Progress, counted

WATCH_SECONDS = 2.0
# An engine that says three times in a row that it is dead will not serve again.
DEAD_AFTER = 3
GENERATION_SECONDS = 30.0


async def watch(front: Front) -> Failure:
    """Follow the engine for ever; returns once it says that it is dead, or has done nothing for `stall_seconds`."""
    limit = front.settings.stall_seconds
    progress = Progress()
    said_dead = 0
    while True:
        await asyncio.sleep(min(WATCH_SECONDS, limit / 4))
        silent = None
        try:
            async with asyncio.timeout(limit / 2):
                await front.client.get_text(front.adapter.liveness)
                await _look_at_work(front, progress)
        except EngineUnreachableError as error:
            silent = str(error)
            said_dead = said_dead + 1 if error.status == 503 else 0
        except TimeoutError:
            silent, said_dead = f"no answer within {limit / 2:g} s", 0
        if silent is None:
            said_dead = 0
            _follow_company(front)
            if progress.still > limit / 2:
                await _ask_for_a_token(front, progress, min(GENERATION_SECONDS, limit / 4))
        else:
            front.lifecycle.set_unhealthy(f"the engine's health check failed: {silent}")
        if said_dead >= DEAD_AFTER:
            return Failure("reported_dead", f"the engine says that it is dead: {silent}")
        if progress.still > limit:
            return _hang(progress, silent)


def _follow_company(front: Front) -> None:
    if front.company.unready is None:
        front.lifecycle.set_healthy()
    else:
        front.lifecycle.set_unhealthy(front.company.unready)


async def _look_at_work(front: Front, progress: Progress) -> None:
    # Without a request under way nobody waits, and the engine is spared the questions.
    requests = await front.adapter.running(front.client) if front.inflight else 0
    if not requests:
        progress.idle()
        return
    text = await front.client.get_text("/metrics")
    try:
        progress.working(requests, counted(front.adapter.translate(text)))
    except MetricsError:
        # Every scrape counts and reports it; of an engine that counts in other names nothing can be concluded.
        progress.idle()


async def _ask_for_a_token(front: Front, progress: Progress, seconds: float) -> None:
    try:
        await generate_once(front.client, front.settings.profile.model.name, seconds)
    except EngineUnreachableError as error:
        log.warning("no counter of the engine moved for %.0f s, and it gives no token: %s", progress.still, error)
        return
    log.warning("no counter of the engine moved for %.0f s, but it generates", progress.still)
    progress.idle()


def _hang(progress: Progress, silent: str | None) -> Failure:
    if silent is not None:
        return Failure("hang", f"the engine hangs: it has not answered for {progress.still:.0f} s ({silent})")
    waiting = f"{progress.requests} requests in it, and none of its counters moved for {progress.still:.0f} s"
    return Failure("hang", f"the engine hangs: {waiting}")
