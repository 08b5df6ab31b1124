"""Forwards a request to the engine and its bytes, untouched, to the client. Raw ASGI: no work per chunk."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from dsv4_serve.engines.connection import EngineConnection, EngineUnreachableError
from dsv4_serve.front import Front
from dsv4_serve.logs import log
from dsv4_serve.metrics.names import CLIENT_LEFT, ENGINE_BROKE_OFF
from dsv4_serve.openai_errors import ApiError, engine_lost, error_event, not_ready, send_error, too_many
from dsv4_serve.validate import ClientGoneError, check_body, read_body

REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
PASSED_HEADERS = ("content-type", "retry-after", "cache-control")


@dataclass(slots=True)
class Exchange:
    """One request on its way: what its log line needs. `status` is the one that it ended with."""

    path: str
    request_id: str
    begun: float = field(default_factory=time.perf_counter)
    first_byte: float | None = None
    status: int | None = None
    sent: int = 0
    reached_engine: bool = False
    problem: str | None = None


class Proxy:
    """The ASGI app behind /v1/chat/completions and /v1/completions."""

    def __init__(self, front: Front) -> None:
        self.front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope["path"], request_id(scope))
        front = self.front
        front.inflight += 1
        front.metrics.inflight.set(front.inflight)
        try:
            await self._serve(exchange, scope, receive, send)
        except ApiError as error:
            exchange.status, exchange.problem = error.status, error.message
            await send_error(send, error, {"x-request-id": exchange.request_id})
        except ClientGoneError:
            exchange.status, exchange.problem = CLIENT_LEFT, "the client left"
        finally:
            front.inflight -= 1
            front.metrics.inflight.set(front.inflight)
            self._record(exchange)

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        front = self.front
        if not front.lifecycle.ready:
            raise not_ready(front.lifecycle.state, front.lifecycle.reason)
        if front.inflight > front.settings.max_inflight:
            raise too_many(front.settings.max_inflight)
        body = await read_body(scope, receive, front.settings.max_body_bytes)
        check_body(exchange.path, body, front.model)
        forward = asyncio.ensure_future(self._forward(exchange, body, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((forward, gone), return_when=asyncio.FIRST_COMPLETED)
            if not forward.done():
                raise ClientGoneError
            forward.result()
        finally:
            gone.cancel()
            forward.cancel()

    async def _forward(self, exchange: Exchange, body: bytes, send: Send) -> None:
        headers = {"content-type": "application/json", "x-request-id": exchange.request_id}
        exchange.reached_engine = True
        try:
            async with self.front.client.exchange("POST", exchange.path, headers, body) as answer:
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._stream(exchange, answer, send)
                else:
                    payload = await answer.body()
                    length = (b"content-length", str(len(payload)).encode())
                    await self._start(exchange, answer, send, length)
                    await send({"type": "http.response.body", "body": payload})
                    exchange.sent = len(payload)
        except EngineUnreachableError as error:
            lost = engine_lost(self.front.lifecycle.reason or str(error))
            if exchange.first_byte is None:
                raise lost from error
            exchange.status, exchange.problem = ENGINE_BROKE_OFF, lost.message
            await send({"type": "http.response.body", "body": error_event(lost)})

    async def _stream(self, exchange: Exchange, answer: EngineConnection, send: Send) -> None:
        await self._start(exchange, answer, send)
        while chunk := await answer.chunk():
            exchange.sent += len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _start(
        self, exchange: Exchange, answer: EngineConnection, send: Send, *more: tuple[bytes, bytes]
    ) -> None:
        passed = [(name.encode(), answer.headers[name].encode()) for name in PASSED_HEADERS if name in answer.headers]
        exchange.status, exchange.first_byte = answer.status, time.perf_counter() - exchange.begun
        headers = [*passed, (b"x-request-id", exchange.request_id.encode()), *more]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})

    def _record(self, exchange: Exchange) -> None:
        metrics = self.front.metrics
        # None: the exchange was cancelled with the server before it had any answer.
        status = exchange.status if exchange.status is not None else CLIENT_LEFT
        metrics.requests.labels(status=str(status)).inc()
        if exchange.first_byte is not None:
            metrics.first_byte.observe(exchange.first_byte)
        # The engine logs requests that reach it, with their tokens; the front the others, and breaks.
        info = not exchange.reached_engine or status == ENGINE_BROKE_OFF
        fields = {
            "id": exchange.request_id,
            "route": exchange.path,
            "status": status,
            "first_byte_ms": exchange.first_byte and round(1e3 * exchange.first_byte, 1),
            "ms": round(1e3 * (time.perf_counter() - exchange.begun), 1),
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


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
