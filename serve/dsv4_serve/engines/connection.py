"""One HTTP/1.1 connection to the engine, parsed by httptools, read without a task or a timer of its own.

General HTTP clients spend most of the front's time per chunk on what loopback does not need. With 64 streams on a busy
machine of two cores that is the difference between 2 and 100 ms of added latency; `tools/bench_launcher.py` shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import httptools

# Above this many unread bytes the engine has to wait for the client.
HIGH_WATER = 1 << 18


class EngineUnreachableError(Exception):
    """No answer from the engine, or not the one asked for. `status`: the HTTP status, if it gave one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineRefusedError(EngineUnreachableError):
    """Nothing listens at the engine's port: it has not begun to, or takes no requests any more."""


class EngineConnection(asyncio.Protocol):
    """Carries one exchange after another; `status` and `headers` (lower-case names) are those of the current one."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = True
        self.idle_since = 0.0
        self._reusable = True
        self._lost: str | None = None
        self._parts: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """True when the last exchange ended cleanly and another may follow."""
        return self.complete and self._reusable and self._lost is None

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Begin an exchange."""
        self.status, self.headers, self.complete = 0, {}, False
        self._parser = httptools.HttpResponseParser(self)
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}content-length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode("latin-1") + body)

    async def head(self) -> None:
        """Wait for the status and the headers."""
        while not self.status:
            await self._wait()

    async def chunk(self) -> bytes:
        """Whatever of the body has arrived since the last call; empty at its end."""
        while not self._parts:
            if self.complete:
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._buffered = 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def body(self) -> bytes:
        parts = []
        while part := await self.chunk():
            parts.append(part)
        return b"".join(parts)

    def abort(self) -> None:
        self._transport.abort()

    async def _wait(self) -> None:
        if self._lost is not None:
            raise EngineUnreachableError(self._lost)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not registered as asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self._lose("the engine sent more than its answer")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._lose(f"the engine's answer is not HTTP: {error}")
        if self._buffered > HIGH_WATER and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if self._lost is None:
            self._lost = f"the connection closed before the answer was complete{f': {error}' if error else ''}"
        self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._buffered += len(data)

    def on_message_complete(self) -> None:
        self._reusable = self._parser.should_keep_alive()
        self.complete = True

    def _lose(self, reason: str) -> None:
        self._lost = reason
        self._transport.abort()
