"""Two-step shutdown: the first signal lets running requests finish, the second ends everything now."""

from __future__ import annotations

import asyncio
import signal
import time

from dsv4_serve.front import Front
from dsv4_serve.logs import log

POLL_SECONDS = 0.05


class Signals:
    """SIGTERM and SIGINT as two events."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, number.name)

    def _received(self, name: str) -> None:
        if self.stop.is_set():
            log.warning("%s again: stopping at once", name)
            self.force.set()
        else:
            log.info("%s: no new requests; running ones finish (again to stop at once)", name)
            self.stop.set()


async def drain(front: Front, signals: Signals) -> int:
    """Refuse new requests, wait for the running ones. Returns how many are still running at the limit."""
    front.lifecycle.set_draining()
    limit = front.settings.drain_seconds
    end = time.monotonic() + limit
    if front.inflight:
        log.info("%d requests are running; waiting for them up to %g s", front.inflight, limit)
    while front.inflight and time.monotonic() < end and not signals.force.is_set():
        await asyncio.sleep(POLL_SECONDS)
    if front.inflight:
        log.warning("%d requests were cut", front.inflight)
    return front.inflight
