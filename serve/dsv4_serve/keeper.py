"""Keeps an engine running: starts it, watches it, and starts another when it stopped serving, within the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsv4_serve.engines.base import EngineAdapter, EngineRun
from dsv4_serve.engines.client import EngineClient
from dsv4_serve.errors import PreflightError
from dsv4_serve.failure import Failure, of_death
from dsv4_serve.front import Front
from dsv4_serve.logs import log
from dsv4_serve.oom_kills import OomKills
from dsv4_serve.restart_policy import Restarts
from dsv4_serve.startup import BOOT, EngineNotReadyError, bring_up
from dsv4_serve.supervisor import STOP_SECONDS, EngineProcess, free_port, how_it_ended
from dsv4_serve.watch import watch

MakeAdapter = Callable[[EngineRun], EngineAdapter]
LOST_RACE_STARTS = 3


class EngineKeeper:
    """One engine after another behind one front. `run` returns once none will be started any more."""

    def __init__(self, front: Front, make_adapter: MakeAdapter, model_dir: Path) -> None:
        self.front = front
        self.restarting = True
        self._make_adapter = make_adapter
        self._model_dir = model_dir
        self._restarts = Restarts(front.settings.restart)
        self._engine: EngineProcess | None = None

    async def run(self, says_ready: Callable[[], None]) -> Failure:
        """Start and start again; `says_ready` is called each time that an engine begins to serve.

        Returns the failure that ended the last engine. PreflightError when the command cannot be executed at all.
        """
        lost_races = 0
        while True:
            failure = await self._one_engine(says_ready)
            # Another process took the port between our look and the engine's: no fault of the engine's.
            if failure.cause == "port_in_use" and self.restarting and lost_races < LOST_RACE_STARTS:
                lost_races += 1
                self._restarts_after(failure, 0.0)
                continue
            delay = self._delay()
            if delay is None:
                return self._last(failure)
            self._restarts_after(failure, delay)
            await asyncio.sleep(delay)

    async def stop(self, grace: float = STOP_SECONDS) -> None:
        """End the engine: SIGTERM, and SIGKILL after `grace` seconds."""
        if self._engine is not None:
            await self._engine.stop(grace)

    def kill(self) -> None:
        if self._engine is not None:
            self._engine.kill()

    async def _one_engine(self, says_ready: Callable[[], None]) -> Failure:
        """Start one and see it to its end."""
        engine = await self._start()
        kills = OomKills(engine.pid)
        gone = asyncio.create_task(engine.gone())
        life = asyncio.create_task(self._serve(says_ready))
        try:
            await asyncio.wait((gone, life), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                # From this moment nothing is sent to it, and no late answer of its health makes it ready again.
                life.cancel()
                self.front.lifecycle.lose_engine(how_it_ended(gone.result()))
                failure = of_death(await engine.death(), kills.since > 0)
            else:
                failure = _failure(life)
                self.front.lifecycle.lose_engine(failure.reason)
                # One that hangs or is dead inside has nothing to finish, and may not hear a SIGTERM.
                engine.kill()
                await engine.death()
        finally:
            gone.cancel()
            life.cancel()
        # A process that left the engine's group may hold its connections, and clients would wait for it.
        self.front.client.close()
        return failure

    async def _serve(self, says_ready: Callable[[], None]) -> Failure:
        await bring_up(self.front)
        says_ready()
        return await watch(self.front)

    async def _start(self) -> EngineProcess:
        front, port = self.front, free_port()
        front.lifecycle.begin(BOOT, "the engine is starting")
        adapter = self._make_adapter(EngineRun(self._model_dir, port, front.settings.json_logs))
        command = adapter.command(front.settings.profile)
        try:
            engine = await EngineProcess.start(command, adapter.environment(front.settings.profile))
        except OSError as error:
            raise PreflightError(f"the engine cannot be started: {command[0]}: {error.strerror}") from error
        front.attach(adapter, EngineClient(port))
        self._engine = engine
        log.info("engine %s starts as process %d", adapter.name, engine.pid)
        return engine

    def _delay(self) -> float | None:
        """None: the server ends, or what never served is told to its user at once rather than tried again."""
        lifecycle = self.front.lifecycle
        if not self.restarting or not lifecycle.started_once:
            return None
        return self._restarts.next_delay(lifecycle.served_seconds)

    def _last(self, failure: Failure) -> Failure:
        if self._restarts.in_row < self._restarts.policy.limit or not self._restarts.in_row:
            return failure
        return Failure(failure.cause, f"{failure.reason}; it was started {self._restarts.in_row} times again, no more")

    def _restarts_after(self, failure: Failure, delay: float) -> None:
        policy = self._restarts.policy
        self.front.lifecycle.set_restarting(f"the engine is started again, because {failure.reason}")
        self.front.metrics.restarts.labels(cause=failure.cause).inc()
        fields: dict[str, Any] = {
            "cause": failure.cause,
            "cut": self.front.inflight,
            "restart": f"{self._restarts.in_row}/{policy.limit}",
            "in": f"{delay:g}s",
        }
        log.error("%s; it is started again", failure.reason, extra={"fields": fields})


def _failure(life: asyncio.Task[Failure]) -> Failure:
    error = life.exception()
    if error is None:
        return life.result()
    if isinstance(error, EngineNotReadyError):
        return error.failure
    raise error
