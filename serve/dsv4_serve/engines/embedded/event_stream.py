"""Server-sent events, and work that ends when its client is gone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .http_errors import from_engine
from .request import EngineError
from .request_log import CLIENT_GONE_STATUS, RequestRecord

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"


class DisconnectError(Exception):
    """The client closed its connection before the answer was complete."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled as soon as the client leaves (then: `DisconnectError`).

    The request's body must have been read, so that the next message can only be the disconnect.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise DisconnectError
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends `first` and then `events` as they come; `events` is closed when the client leaves.

    An engine that fails half-way is reported as an event with an `error` object, without the final `[DONE]`.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None], record: RequestRecord) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._events = events
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send_all(send))
        except DisconnectError:
            self._record.status = CLIENT_GONE_STATUS
            self._record.finish.append("disconnect")
        finally:
            await self._events.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except EngineError as error:
            failure = from_engine(error)
            self._record.error = failure.code
            await send({"type": "http.response.body", "body": _event(failure.body()), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _event(body: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"
