"""Two-step shutdown: the first signal lets running requests finish, the second ends everything now."""

from __future__ import annotations

import asyncio
import signal
import time

from dsv4_serve.engines.client import EngineUnreachableError
from dsv4_serve.front import Front
from dsv4_serve.logs import log

POLL_SECONDS = 0.05
SETTLE_POLL_SECONDS = 0.5


class Signals:
    """SIGTERM and SIGINT as two events; `typed`: the first one was a SIGINT, so a person is waiting."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        self.typed = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            log.warning("%s again: stopping at once", number.name)
            self.force.set()
        else:
            log.info("%s: no new requests; running ones finish (again to stop at once)", number.name)
            self.typed = number == signal.SIGINT
            self.stop.set()


async def drain(front: Front, signals: Signals) -> int:
    """Say that the server leaves, then refuse new requests, then wait for the running ones and for a quiet engine.

    Returns how many requests are still running at the limit. A typed SIGINT skips the first step and the last: they are
    for load balancers that hear late, and for engines whose count lags, and a person waits.
    """
    if front.lifecycle.ready and not signals.typed:
        await _leave(front, signals)
    front.lifecycle.set_draining()
    await _finish(front, signals)
    if not signals.typed and not front.inflight:
        await _settle(front, signals)
    for exchange in front.exchanges:
        fields = {"id": exchange.request_id, "seconds": round(exchange.seconds, 1), "bytes": exchange.sent}
        log.warning("cut", extra={"fields": fields})
    if front.exchanges:
        log.warning("%d requests were cut", front.inflight)
    return front.inflight


async def _leave(front: Front, signals: Signals) -> None:
    front.lifecycle.set_leaving()
    end = time.monotonic() + front.settings.leave_seconds
    while time.monotonic() < end and not signals.force.is_set():
        await asyncio.sleep(POLL_SECONDS)


async def _finish(front: Front, signals: Signals) -> None:
    limit = front.settings.drain_seconds
    end = time.monotonic() + limit
    if front.inflight:
        log.info("%d requests are running; waiting for them up to %g s", front.inflight, limit)
    while front.inflight and time.monotonic() < end and not signals.force.is_set():
        await asyncio.sleep(POLL_SECONDS)


async def _settle(front: Front, signals: Signals) -> None:
    """Until the engine has counted no request for `settle_seconds`; gives up after `drain_seconds` more."""
    quiet_since = begun = time.monotonic()
    settle = front.settings.settle_seconds
    while time.monotonic() - quiet_since < settle and not signals.force.is_set():
        try:
            running = await front.adapter.running(front.client)
        except EngineUnreachableError as error:
            log.warning("the engine does not tell how many requests it runs: %s", error)
            return
        if running:
            quiet_since = time.monotonic()
        if quiet_since - begun > front.settings.drain_seconds:
            log.warning("the engine still counts %d requests; they are cut", running)
            return
        await asyncio.sleep(min(SETTLE_POLL_SECONDS, settle))
