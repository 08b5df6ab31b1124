"""One run of `dsv4 serve`: listen, start the engine, wait for it, serve, drain, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from dsv4_serve.app import admin_app, public_app
from dsv4_serve.drain import Signals, drain
from dsv4_serve.engines.base import EngineAdapter, EngineRun
from dsv4_serve.engines.client import EngineClient
from dsv4_serve.errors import PreflightError
from dsv4_serve.front import Front
from dsv4_serve.lifecycle import Lifecycle
from dsv4_serve.listeners import Listener, bind, url
from dsv4_serve.logs import log
from dsv4_serve.metrics.registry import LauncherMetrics
from dsv4_serve.settings import ServeSettings
from dsv4_serve.startup import EngineNotReadyError, bring_up, watch
from dsv4_serve.supervisor import STOP_SECONDS, EngineProcess, free_port

CUT_SECONDS = 1.0

MakeAdapter = Callable[[EngineRun], EngineAdapter]


def serve(settings: ServeSettings, make_adapter: MakeAdapter, model_dir: Path, warnings: Sequence[str] = ()) -> int:
    """Serve until a signal (exit code 0) or the engine's end (1). PreflightError when a port is taken."""
    return uvloop.run(_serve(settings, make_adapter, model_dir, warnings))


async def _serve(settings: ServeSettings, make_adapter: MakeAdapter, model_dir: Path, warnings: Sequence[str]) -> int:
    public = bind(settings.host, settings.port, "--port")
    admin = bind(settings.host, settings.admin_port, "--admin-port")
    signals = Signals()
    port = free_port()
    adapter = make_adapter(EngineRun(model_dir, port, settings.json_logs))
    async with AsyncExitStack() as stack:
        client = EngineClient(port)
        stack.callback(client.close)
        front = Front(settings, adapter, client, Lifecycle(), LauncherMetrics(), warnings)
        engine = await _start_engine(adapter, front)
        # Closed last, so that health answers to the end; the engine is gone by then.
        for app, bound in ((public_app(front), public), (admin_app(front), admin)):
            stack.push_async_callback(Listener(app, bound).close)
        stack.push_async_callback(engine.stop)
        log.info("%s on %s, admin on %s", settings.profile.model.name, url(public), url(admin))
        code = await _supervise(front, engine, signals, url(public))
        if signals.force.is_set():
            engine.kill()
        # Requests that outlived the drain were given their time; the engine need not wait for them again.
        await engine.stop(CUT_SECONDS if front.inflight else STOP_SECONDS)
    log.info("stopped")
    return code


async def _start_engine(adapter: EngineAdapter, front: Front) -> EngineProcess:
    command = adapter.command(front.settings.profile)
    try:
        engine = await EngineProcess.start(command, adapter.environment(front.settings.profile))
    except OSError as error:
        raise PreflightError(f"the engine cannot be started: {command[0]}: {error.strerror}") from error
    log.info("engine %s starts as process %d", adapter.name, engine.pid)
    return engine


async def _supervise(front: Front, engine: EngineProcess, signals: Signals, public_url: str) -> int:
    """Until the first of: a signal (0), the engine's end, its failure to become ready, its own word (1)."""
    watched: dict[str, asyncio.Task[Any]] = {
        "signal": asyncio.create_task(signals.stop.wait()),
        "death": asyncio.create_task(engine.wait()),
        "unready": asyncio.create_task(_ready_then_watch(front, public_url)),
    }
    try:
        await asyncio.wait(watched.values(), return_when=asyncio.FIRST_COMPLETED)
        if watched["signal"].done():
            return await _drain_or_die(front, watched["death"], signals)
        reason = str(watched["death"].result()) if watched["death"].done() else _reason(watched["unready"])
    finally:
        for task in watched.values():
            task.cancel()
    front.lifecycle.set_dead(reason)
    log.error("%s", reason)
    return 1


async def _drain_or_die(front: Front, death: asyncio.Task[Any], signals: Signals) -> int:
    draining = asyncio.create_task(drain(front, signals))
    await asyncio.wait((draining, death), return_when=asyncio.FIRST_COMPLETED)
    if death.done() and front.inflight:
        front.lifecycle.set_dead(str(death.result()))
        log.error("%s while %d requests were running", death.result(), front.inflight)
        draining.cancel()
        return 1
    return 1 if signals.force.is_set() else 0


async def _ready_then_watch(front: Front, public_url: str) -> str:
    lifecycle = front.lifecycle
    await bring_up(front)
    own = ", ".join(f"{phase.name} {phase.seconds:.1f} s" for phase in lifecycle.phases() if phase.source == "launcher")
    log.info("ready on %s after %.1f s (%s)", public_url, lifecycle.uptime, own)
    return f"the engine says that it is dead: {await watch(front.client, lifecycle)}"


def _reason(task: asyncio.Task[str]) -> str:
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, EngineNotReadyError):
        return str(error)
    raise error
