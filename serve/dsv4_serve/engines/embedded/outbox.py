"""Tokens on their way from the engine thread to the event loops that wait for them.

One wake-up of a loop a step, however many requests got a token: a wake-up for each would have the two threads hand the
interpreter lock back and forth between the operations of the next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .request import EngineError, TokenOutput

Item = TokenOutput | EngineError
Queue = asyncio.Queue[Item]


class Outbox:
    """Collects what a step produced; `flush` delivers it. Used by the engine thread only."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[Queue, Item]]] = {}

    def sink(self, loop: asyncio.AbstractEventLoop, queue: Queue) -> Callable[[Item], None]:
        """A request's sink: what it is given reaches `queue`, on `loop`, with the next flush."""
        return lambda item: self._waiting.setdefault(loop, []).append((queue, item))

    def flush(self) -> None:
        """Hand everything over. A loop that is closed has no reader any more."""
        while self._waiting:
            loop, items = self._waiting.popitem()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, items)


def _deliver(items: list[tuple[Queue, Item]]) -> None:
    for queue, item in items:
        queue.put_nowait(item)
