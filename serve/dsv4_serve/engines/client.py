"""The launcher's HTTP client of its engine: pooled connections on loopback."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from dsv4_serve.engines.connection import EngineConnection, EngineRefusedError, EngineUnreachableError

__all__ = ["EngineClient", "EngineUnreachableError"]

# The engine reports why it refuses in a body of a few hundred bytes; more of it would drown the message.
MAX_ERROR_TEXT = 500
# Servers close idle connections after 5 s or later; one that might be closing is not used.
IDLE_SECONDS = 3.0
JSON = {"content-type": "application/json"}


class EngineClient:
    """Requests to the engine on 127.0.0.1:`port`; EngineUnreachableError says why there was no answer."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self.port = port
        self.timeout = timeout
        self._idle: list[EngineConnection] = []
        self._busy: set[EngineConnection] = set()

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[EngineConnection]:
        """Send a request; inside, status and headers are known and the body can be read, in chunks or whole.

        Leaving before the end of the body closes the connection, which is how the engine learns that nobody listens.
        EngineRefusedError when the request could not even be sent.
        """
        connection = await self._connect()
        self._busy.add(connection)
        try:
            connection.send(method, path, headers, body)
            await connection.head()
            yield connection
        finally:
            self._busy.discard(connection)
            if connection.reusable:
                connection.idle_since = time.monotonic()
                self._idle.append(connection)
            else:
                connection.abort()

    async def get_text(self, path: str) -> str:
        return await self._request("GET", path, {}, b"", self.timeout)

    async def get_json(self, path: str) -> Any:
        return _json(await self.get_text(path), path)

    async def post_json(self, path: str, body: dict[str, Any], timeout: float) -> Any:
        return _json(await self._request("POST", path, JSON, json.dumps(body).encode(), timeout), path)

    def close(self) -> None:
        """Close every connection; exchanges under way fail."""
        for connection in [*self._idle, *self._busy]:
            connection.abort()
        self._idle.clear()

    async def _connect(self) -> EngineConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and time.monotonic() - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.abort()
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(EngineConnection, "127.0.0.1", self.port)
        except OSError as error:
            raise EngineRefusedError(f"it does not listen: {error.strerror or error}") from error
        return connection

    async def _request(self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout: float) -> str:
        try:
            async with asyncio.timeout(timeout), self.exchange(method, path, headers, body) as connection:
                text = (await connection.body()).decode(errors="replace")
        except EngineUnreachableError as error:
            raise EngineUnreachableError(f"{method} {path}: {error}") from error
        except TimeoutError as error:
            raise EngineUnreachableError(f"{method} {path}: no answer within {timeout:g} s") from error
        if connection.status != 200:
            shown = text[:MAX_ERROR_TEXT]
            raise EngineUnreachableError(f"{method} {path}: {connection.status} {shown}", connection.status)
        return text


def _json(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise EngineUnreachableError(f"{path}: not JSON: {text[:MAX_ERROR_TEXT]!r}") from error
