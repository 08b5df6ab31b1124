"""The launcher's HTTP connection to its engine: one pooled session on loopback."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

# The engine reports why it refuses in a body of a few hundred bytes; more of it would drown the message.
MAX_ERROR_TEXT = 500


class EngineUnreachableError(Exception):
    """No answer from the engine, or not the one asked for. `status`: the HTTP status, if it gave one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineClient:
    """Small requests to the engine (health, information, metrics, the first generation).

    `session` is also what the proxy streams through, so both share the pool of connections.
    """

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.timeout = aiohttp.ClientTimeout(total=timeout)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def get_text(self, path: str) -> str:
        return await self._request("GET", path, None, self.timeout)

    async def get_json(self, path: str) -> Any:
        return _json(await self.get_text(path), path)

    async def post_json(self, path: str, body: dict[str, Any], timeout: float) -> Any:
        text = await self._request("POST", path, body, aiohttp.ClientTimeout(total=timeout))
        return _json(text, path)

    async def close(self) -> None:
        await self.session.close()

    async def _request(self, method: str, path: str, body: Any, timeout: aiohttp.ClientTimeout) -> str:
        try:
            async with self.session.request(method, self.base + path, json=body, timeout=timeout) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineUnreachableError(f"{method} {path}: {error or type(error).__name__}") from error
        if response.status != 200:
            raise EngineUnreachableError(f"{method} {path}: {response.status} {text[:MAX_ERROR_TEXT]}", response.status)
        return text


def _json(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise EngineUnreachableError(f"{path}: not JSON: {text[:MAX_ERROR_TEXT]!r}") from error
