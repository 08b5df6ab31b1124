"""The client of the engine: reuse, back-pressure, and every way in which an answer can fail to come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dsv4_serve.engines import connection as connection_module
from dsv4_serve.engines.client import EngineClient, EngineUnreachableError

pytestmark = pytest.mark.asyncio

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def engine(handler: Handler, timeout: float = 10.0) -> AsyncIterator[tuple[EngineClient, list[int]]]:
    """A client of a server that runs `handler` for each connection; the list grows with each connection."""
    connections: list[int] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(len(connections))
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    client = EngineClient(server.sockets[0].getsockname()[1], timeout)
    try:
        yield client, connections
    finally:
        client.close()
        server.close()
        await server.wait_closed()


def always(answer: bytes, *, close: bool = False) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if close:
                return

    return handler


async def test_a_connection_is_used_again() -> None:
    async with engine(always(OK)) as (client, connections):
        assert [await client.get_text("/health") for _ in range(5)] == ["ok"] * 5
        assert len(connections) == 1
        await asyncio.gather(*(client.get_text("/health") for _ in range(3)))
        assert len(connections) == 3


async def test_but_not_after_the_engine_wants_to_close_it() -> None:
    closing = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with engine(always(closing)) as (client, connections):
        assert [await client.get_text("/health") for _ in range(2)] == ["ok"] * 2
        assert len(connections) == 2


async def test_nor_when_it_was_closed_or_stood_idle_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(always(OK, close=True)) as (client, connections):
        await client.get_text("/health")
        await asyncio.sleep(0.05)
        assert await client.get_text("/health") == "ok"
        assert len(connections) == 2
    monkeypatch.setattr("dsv4_serve.engines.client.IDLE_SECONDS", 0.0)
    async with engine(always(OK)) as (client, connections):
        await client.get_text("/health")
        await client.get_text("/health")
        assert len(connections) == 2


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_chunked_body_arrives_whole_however_it_was_cut(size: int) -> None:
    parts = [bytes([65 + i % 26]) * (i + 1) for i in range(50)]
    raw = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
    raw += b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(raw), size):
            writer.write(raw[start : start + size])
            await writer.drain()
        await reader.read()

    async with engine(handler) as (client, _), client.exchange("GET", "/", {}, b"") as answer:
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        assert await answer.body() == b"".join(parts)
        assert answer.reusable


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "GET /x: the connection closed before the answer was complete"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", "GET /x: the connection closed before"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n", "GET /x: the connection closed before"),
        (b"SMTP ready\r\n\r\n", "GET /x: the engine's answer is not HTTP"),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\ndead", "GET /x: 503 dead"),
    ],
)
async def test_an_answer_that_does_not_come_says_why(raw: bytes, message: str) -> None:
    async with engine(always(raw, close=True)) as (client, _):
        with pytest.raises(EngineUnreachableError, match=message) as caught:
            await client.get_text("/x")
        assert caught.value.status == (503 if b"503" in raw else None)


async def test_no_answer_in_time_and_nobody_there() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with engine(silent, timeout=0.1) as (client, _):
        with pytest.raises(EngineUnreachableError, match=r"GET /x: no answer within 0.1 s"):
            await client.get_text("/x")
        port = client.port
    with pytest.raises(EngineUnreachableError, match="it does not listen:"):
        await EngineClient(port).get_text("/x")


async def test_what_is_not_json_is_named() -> None:
    async with engine(always(OK)) as (client, _):
        with pytest.raises(EngineUnreachableError, match="/server_info: not JSON: 'ok'"):
            await client.get_json("/server_info")


async def test_leaving_early_closes_the_connection() -> None:
    closed = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
        try:
            await reader.read()
        finally:
            closed.set()

    async with engine(endless) as (client, _):
        async with client.exchange("POST", "/", {}, b"{}") as answer:
            assert await answer.chunk() == b"ab"
        await asyncio.wait_for(closed.wait(), 10)


async def test_a_slow_reader_holds_the_engine_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HIGH_WATER", 1 << 16)
    total = 64 << 20
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while written < total:
            writer.write(b"x" * (1 << 16))
            await writer.drain()
            written += 1 << 16
        await reader.read()

    async with engine(flood) as (client, _), client.exchange("GET", "/", {}, b"") as answer:
        await asyncio.sleep(0.3)
        assert written < total // 2, "the engine was not held back"
        assert len(await answer.body()) == total


async def test_closing_the_client_ends_what_is_under_way() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with engine(silent) as (client, _):
        waiting = asyncio.create_task(client.get_text("/x"))
        await asyncio.sleep(0.05)
        client.close()
        with pytest.raises(EngineUnreachableError, match="the connection closed"):
            await waiting
