"""From a started process to a ready engine, and the watch that follows."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dsv4_serve.engines.base import EngineAdapter
from dsv4_serve.engines.client import EngineClient, EngineUnreachableError
from dsv4_serve.failure import Cause, Failure
from dsv4_serve.front import Front
from dsv4_serve.lifecycle import Lifecycle
from dsv4_serve.logs import log
from dsv4_serve.nodes import Nodes
from dsv4_serve.startup_selftest import run_startup_selftest

BOOT = "engine_boot"
POLL_SECONDS = 0.1
PROGRESS_SECONDS = 5.0
MOST_SECONDS = 2.0
"""Between two attempts at a first generation: each is a line in the engine's log."""


class EngineNotReadyError(Exception):
    """The engine did not become ready in time, or does not run what was asked for."""

    def __init__(self, cause: Cause, reason: str) -> None:
        super().__init__(reason)
        self.failure = Failure(cause, reason)


async def bring_up(front: Front) -> None:
    """Wait until the engine lives, hold what it runs against what was asked, then wait for its first generation.

    Where the profile asks for it, the self-test follows. EngineNotReadyError when that takes too long or fails, or when
    something that was asked for is not in effect.
    """
    adapter, client, lifecycle, limit = front.adapter, front.client, front.lifecycle, front.settings.startup_seconds
    end = time.monotonic() + limit
    lifecycle.begin(BOOT, "the engine is starting")
    await _until_alive(adapter, client, lifecycle, end)
    await verify_effective(front)
    lifecycle.begin("first_generation", "the engine has not answered a generation yet")
    last = await _until_generated(adapter, client, lifecycle, end)
    if last is not None:
        raise EngineNotReadyError("slow_start", f"not ready after {limit:g} s: {last}")
    profile = front.settings.profile
    if profile.selftest and not Nodes.of(profile.toggles()).worker:
        lifecycle.begin("selftest", "the engine answers its self-test")
        failed = await run_startup_selftest(front, max(0.0, end - time.monotonic()))
        if failed is not None:
            raise EngineNotReadyError("selftest_failed", f"the self-test failed: {failed}")
    await _until_company_ready(front, end)
    lifecycle.set_ready()
    for phase in lifecycle.phases():
        front.metrics.startup_phase.labels(phase=phase.name).set(phase.seconds)


async def _until_alive(adapter: EngineAdapter, client: EngineClient, lifecycle: Lifecycle, end: float) -> None:
    said = time.monotonic()
    while True:
        try:
            await client.get_text(adapter.liveness)
            return
        except EngineUnreachableError as error:
            starting = f"the engine is starting: {error}"
            lifecycle.explain(starting)
        if time.monotonic() > end:
            raise EngineNotReadyError("slow_start", f"the engine did not start in time: {starting}")
        if time.monotonic() - said > PROGRESS_SECONDS:
            said = time.monotonic()
            log.info("the engine is starting (%.0f s)", lifecycle.seconds_in_phase)
        await asyncio.sleep(POLL_SECONDS)


async def _until_generated(
    adapter: EngineAdapter, client: EngineClient, lifecycle: Lifecycle, end: float
) -> str | None:
    """None once it generated, else why the last attempt did not; each refusal makes the next attempt wait longer."""
    last, pause = "no attempt was made", POLL_SECONDS
    telling = asyncio.create_task(_tell(lifecycle))
    try:
        while time.monotonic() < end:
            try:
                if await adapter.ready(client):
                    return None
                last = "the engine says that it is not ready"
            except EngineUnreachableError as error:
                last = str(error)
            lifecycle.explain(f"the engine has not answered a generation yet: {last}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, MOST_SECONDS)
    finally:
        telling.cancel()
    return last


async def _tell(lifecycle: Lifecycle) -> None:
    """Log what the start waits for until it is cancelled: a generation may compile for minutes, or never come."""
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        log.info("%s (%.0f s)", lifecycle.reason, lifecycle.seconds_in_phase)


async def _until_company_ready(front: Front, end: float) -> None:
    """On rank 0 of several machines: the others must be ready too."""
    if front.company.unready is not None:
        front.lifecycle.begin("ranks", front.company.unready)
    while (unready := front.company.unready) is not None:
        front.lifecycle.explain(unready)
        if time.monotonic() > end:
            raise EngineNotReadyError("slow_start", f"not ready in time: {unready}")
        await asyncio.sleep(POLL_SECONDS)


async def verify_effective(front: Front) -> None:
    """Ask the engine what it runs and count what was asked for and does not; EngineNotReadyError unless allowed."""
    try:
        effective = await front.adapter.effective(front.client)
    except EngineUnreachableError as error:
        raise EngineNotReadyError("not_effective", f"the engine does not say what it runs: {error}") from error
    profile = front.settings.profile
    front.metrics.not_effective(_not_effective(front, effective))
    differences = front.adapter.differences(profile, effective)
    if differences:
        told = f"the engine does not run what was asked for: {'; '.join(differences)}"
        raise EngineNotReadyError("not_effective", told)
    phases = effective.get("startup_phases", {})
    front.lifecycle.engine_phases({str(name): float(seconds) for name, seconds in phases.items()})


def _not_effective(front: Front, effective: dict[str, Any]) -> int:
    """What was asked for and does not run, tolerated or not: dropped before the start, or found after it."""
    profile = front.settings.profile
    strict = profile.model_copy(update={"flags": profile.flags | {"DSV4_ALLOW_FALLBACK": False}})
    return len(front.warnings) + len(front.adapter.differences(strict, effective))
