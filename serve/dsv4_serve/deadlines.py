"""Ends requests that have run for too long, and those on which nothing has moved for too long."""

from __future__ import annotations

import asyncio
import time

from dsv4_serve.front import Front
from dsv4_serve.openai_errors import took_too_long

CHECK_SECONDS = 0.5


async def enforce_deadlines(front: Front) -> None:
    """Look at every request twice a second, for ever: no timer for each, and no work for each chunk but a clock."""
    settings = front.settings
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        now = time.perf_counter()
        for exchange in list(front.exchanges):
            if now - exchange.begun > settings.request_seconds:
                exchange.end(took_too_long("it took longer than", settings.request_seconds))
            elif now - exchange.moved > settings.idle_seconds:
                exchange.end(took_too_long("nothing moved for", settings.idle_seconds))
