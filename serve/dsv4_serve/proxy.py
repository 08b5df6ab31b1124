"""Forwards a request to the engine and its bytes, untouched, to the client. Raw ASGI: little work per chunk."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

from dsv4_serve.engines.connection import EngineConnection, EngineRefusedError, EngineUnreachableError
from dsv4_serve.exchange import Exchange
from dsv4_serve.front import Front
from dsv4_serve.front_protocol import abort_connection
from dsv4_serve.logs import log
from dsv4_serve.metrics.names import CLIENT_LEFT, ENGINE_BROKE_OFF
from dsv4_serve.openai_errors import ApiError, engine_lost, error_event, not_ready, send_error, too_many
from dsv4_serve.validate import ClientGoneError, check_body, read_body

REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
PASSED_HEADERS = ("content-type", "retry-after", "cache-control")
# For the words that tell a client why its request was ended; one that reads nothing does not get them.
LAST_WORDS_SECONDS = 1.0
# A whole answer is handed over in pieces, so that a client that does not read it holds one of them and not all.
PIECE = 64 << 10

Result = TypeVar("Result")


class Proxy:
    """The ASGI app behind /v1/chat/completions and /v1/completions."""

    def __init__(self, front: Front) -> None:
        self.front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope["path"], request_id(scope))
        front = self.front
        front.exchanges.add(exchange)
        front.metrics.inflight.set(front.inflight)
        try:
            await self._serve(exchange, scope, receive, send)
        except ApiError as error:
            exchange.problem = error.message
            await self._refuse(exchange, error, scope, send)
        except ClientGoneError:
            exchange.status, exchange.problem = CLIENT_LEFT, "the client left"
        finally:
            front.exchanges.discard(exchange)
            front.metrics.inflight.set(front.inflight)
            self._record(exchange)

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward until the answer is complete, the client leaves, or the exchange is cut: the first of them."""
        front = self.front
        if not front.lifecycle.takes_requests:
            raise not_ready(front.lifecycle.state, front.lifecycle.reason)
        if front.inflight > front.settings.max_inflight:
            raise too_many(front.settings.max_inflight)
        body = await _unless_cut(exchange, read_body(scope, receive, front.settings.max_body_bytes, exchange))
        request = check_body(exchange.path, body, front.model, front.settings.max_choices)
        if front.prompt_limit is not None:
            await _unless_cut(exchange, front.prompt_limit.check(request))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await _unless_cut(exchange, self._forward(exchange, body, send), gone)
        finally:
            gone.cancel()

    async def _forward(self, exchange: Exchange, body: bytes, send: Send) -> None:
        headers = {"content-type": "application/json", "x-request-id": exchange.request_id}
        lifecycle = self.front.lifecycle
        exchange.reached_engine = True
        try:
            async with self.front.client.exchange("POST", exchange.path, headers, body) as answer:
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._stream(exchange, answer, send)
                else:
                    payload = await answer.body()
                    length = (b"content-length", str(len(payload)).encode())
                    await self._start(exchange, answer, send, length)
                    await self._pieces(exchange, payload, send)
        except EngineRefusedError as error:
            exchange.reached_engine = False
            lifecycle.lose_engine("the engine takes no connections any more")
            raise not_ready(lifecycle.state, lifecycle.reason) from error
        except EngineUnreachableError as error:
            raise engine_lost(str(error) if lifecycle.takes_requests else lifecycle.reason) from error

    async def _stream(self, exchange: Exchange, answer: EngineConnection, send: Send) -> None:
        exchange.streams = True
        await self._start(exchange, answer, send)
        while chunk := await answer.chunk():
            exchange.sent += len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            exchange.moved = time.perf_counter()
        await send({"type": "http.response.body", "body": b""})

    async def _pieces(self, exchange: Exchange, payload: bytes, send: Send) -> None:
        for place in range(0, len(payload), PIECE):
            piece = payload[place : place + PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            exchange.sent, exchange.moved = exchange.sent + len(piece), time.perf_counter()
        await send({"type": "http.response.body", "body": b""})

    async def _start(
        self, exchange: Exchange, answer: EngineConnection, send: Send, *more: tuple[bytes, bytes]
    ) -> None:
        passed = [(name.encode(), answer.headers[name].encode()) for name in PASSED_HEADERS if name in answer.headers]
        exchange.status, exchange.moved = answer.status, time.perf_counter()
        exchange.first_byte = exchange.moved - exchange.begun
        headers = [*passed, (b"x-request-id", exchange.request_id.encode()), *more]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})

    async def _refuse(self, exchange: Exchange, error: ApiError, scope: Scope, send: Send) -> None:
        """As an answer, or as the last event of a stream that has begun.

        A client that takes neither is cut off, and one that has a part of an answer that is no stream: it has a length,
        and what was sent besides would be taken for a part of it.
        """
        begun = exchange.first_byte is not None
        exchange.status = ENGINE_BROKE_OFF if begun and error.code == "engine_lost" else error.status
        if begun and not exchange.streams:
            abort_connection(scope)
            return
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                if begun:
                    await send({"type": "http.response.body", "body": error_event(error)})
                else:
                    await send_error(send, error, {"x-request-id": exchange.request_id})
        except TimeoutError:
            abort_connection(scope)

    def _record(self, exchange: Exchange) -> None:
        metrics = self.front.metrics
        # None: the exchange was cancelled with the server before it had any answer.
        status = exchange.status if exchange.status is not None else CLIENT_LEFT
        metrics.requests.labels(status=str(status)).inc()
        if exchange.first_byte is not None:
            metrics.first_byte.observe(exchange.first_byte)
        # The engine logs requests that reach it, with their tokens; the front the others, and what it ended itself.
        info = not exchange.reached_engine or status == ENGINE_BROKE_OFF or exchange.cut.done()
        fields = {
            "id": exchange.request_id,
            "route": exchange.path,
            "status": status,
            "first_byte_ms": exchange.first_byte and round(1e3 * exchange.first_byte, 1),
            "ms": round(1e3 * exchange.seconds, 1),
            "bytes": exchange.sent,
            "problem": exchange.problem,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        (log.info if info else log.debug)("request", extra={"fields": known})


def request_id(scope: Scope) -> str:
    """The client's own id when it sent a sane one, so that its logs and ours meet; a fresh one otherwise."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value.decode("latin-1")):
            return str(value.decode("latin-1"))
    return f"req-{secrets.token_hex(8)}"


async def _unless_cut(
    exchange: Exchange, work: Coroutine[Any, Any, Result], gone: asyncio.Future[None] | None = None
) -> Result:
    """The result of `work`, which ends as soon as the exchange is cut (with its error) or the client is gone."""
    task = asyncio.ensure_future(work)
    ends = (task, exchange.cut, *((gone,) if gone is not None else ()))
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if exchange.cut.done():
            raise exchange.cut.result()
        raise ClientGoneError
    finally:
        task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
