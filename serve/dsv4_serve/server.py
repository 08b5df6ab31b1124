"""One run of `dsv4 serve`: listen, keep an engine running, serve, drain, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from dsv4_serve.app import admin_app, public_app
from dsv4_serve.deadlines import enforce_deadlines
from dsv4_serve.drain import Signals, drain
from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.client import EngineClient
from dsv4_serve.expected_capacity import show_expected
from dsv4_serve.failure import Failure
from dsv4_serve.front import Front
from dsv4_serve.keeper import EngineKeeper, MakeAdapter
from dsv4_serve.lifecycle import Lifecycle
from dsv4_serve.listeners import Listener, bind, url
from dsv4_serve.logs import log
from dsv4_serve.metrics.registry import LauncherMetrics
from dsv4_serve.nodes import Nodes
from dsv4_serve.prompt_limit import PromptLimit
from dsv4_serve.ranks.join import company
from dsv4_serve.settings import ServeSettings
from dsv4_serve.startup import BOOT
from dsv4_serve.supervisor import STOP_SECONDS

CUT_SECONDS = 1.0
# Of an engine that has not been started yet: no port has this number.
NO_PORT = 0


def serve(settings: ServeSettings, make_adapter: MakeAdapter, model_dir: Path, warnings: Sequence[str] = ()) -> int:
    """Serve until a signal (exit code 0) or the engine's last end (1). PreflightError when a port is taken."""
    return uvloop.run(_serve(settings, make_adapter, model_dir, warnings))


async def _serve(settings: ServeSettings, make_adapter: MakeAdapter, model_dir: Path, warnings: Sequence[str]) -> int:
    public = bind(settings.host, settings.port, "--port")
    admin = bind(settings.host, settings.admin_port, "--admin-port")
    signals = Signals()
    adapter = make_adapter(EngineRun(model_dir, NO_PORT, settings.json_logs))
    front = Front(settings, adapter, EngineClient(NO_PORT), Lifecycle(), LauncherMetrics(), warnings)
    if settings.max_prompt_tokens is not None:
        front.prompt_limit = PromptLimit.load(settings.max_prompt_tokens, settings.profile, model_dir)
    show_expected(front.metrics, settings.profile, model_dir)
    front.lifecycle.begin(BOOT, "the engine is about to be started")
    keeper = EngineKeeper(front, make_adapter, model_dir)
    # The engines of several machines are one group: they start again together or not at all, so that is for whoever
    # starts the launchers.
    keeper.restarting = Nodes.of(settings.profile.toggles()).count == 1
    async with AsyncExitStack() as stack:
        stack.callback(lambda: front.client.close())
        # Closed last, so that health answers to the end; the engine is gone by then.
        for app, bound in ((public_app(front), public), (admin_app(front), admin)):
            stack.push_async_callback(Listener(app, bound).close)
        stack.push_async_callback(keeper.stop)
        log.info("%s on %s, admin on %s", settings.profile.model.name, url(public), url(admin))
        front.company = await stack.enter_async_context(company(front, model_dir))
        code = await _supervise(front, keeper, signals, url(public))
        if signals.force.is_set():
            keeper.kill()
        # Requests that outlived the drain were given their time; the engine need not wait for them again.
        await keeper.stop(CUT_SECONDS if front.inflight else STOP_SECONDS)
    log.info("stopped")
    return code


async def _supervise(front: Front, keeper: EngineKeeper, signals: Signals, public_url: str) -> int:
    """Until the first of: a signal (0), the end of the last engine or of another machine (1)."""
    stop = asyncio.create_task(signals.stop.wait())
    kept = asyncio.create_task(_keep(front, keeper, public_url))
    lost = asyncio.create_task(front.company.lost())
    deadlines = asyncio.create_task(enforce_deadlines(front))
    tasks: tuple[asyncio.Task[Any], ...] = (stop, kept, lost, deadlines)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            keeper.restarting = False
            return await _drain_or_die(front, kept, signals)
        if deadlines.done():
            deadlines.result()
        if lost.done():
            return _dead(front, lost.result())
        return _dead(front, kept.result())
    finally:
        for task in tasks:
            task.cancel()


async def _keep(front: Front, keeper: EngineKeeper, public_url: str) -> Failure:
    """An engine is started, and so loads weights, only once all machines are there and alike."""
    await front.company.agree()
    return await keeper.run(lambda: _say_ready(front, public_url))


async def _drain_or_die(front: Front, kept: asyncio.Task[Failure], signals: Signals) -> int:
    draining = asyncio.create_task(drain(front, signals))
    await asyncio.wait((draining, kept), return_when=asyncio.FIRST_COMPLETED)
    if kept.done() and front.inflight:
        log.error("%d requests were running when the engine ended", front.inflight)
        draining.cancel()
        return _dead(front, kept.result())
    return 1 if signals.force.is_set() else 0


def _dead(front: Front, failure: Failure) -> int:
    front.lifecycle.set_dead(failure.reason)
    log.error("%s", failure.reason, extra={"fields": {"cause": failure.cause}})
    return 1


def _say_ready(front: Front, public_url: str) -> None:
    lifecycle = front.lifecycle
    own = ", ".join(f"{phase.name} {phase.seconds:.1f} s" for phase in lifecycle.phases() if phase.source == "launcher")
    log.info("ready on %s after %.1f s (%s)", public_url, lifecycle.uptime, own)
