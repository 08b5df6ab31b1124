"""The two ports: bound before anything is started, served by uvicorn, closed last."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from dsv4_serve.errors import PreflightError
from dsv4_serve.front_protocol import FrontProtocol

CLOSE_SECONDS = 2
BACKLOG = 1024


def bind(host: str, port: int, option: str) -> socket.socket:
    """A bound socket; PreflightError when the address is taken or not ours."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        hint = f"; {option} picks another" if port else ""
        raise PreflightError(f"cannot listen on {host}:{port}: {error.strerror or error}{hint}") from error


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


class _Server(uvicorn.Server):
    """Without uvicorn's own signal handlers: the launcher drains before it closes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class Listener:
    """One application on one bound socket, inside the running loop."""

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http=FrontProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="error",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            server_header=False,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[bound]))

    async def close(self) -> None:
        """Stop listening; connections that still answer get CLOSE_SECONDS."""
        self._server.should_exit = True
        await self._task
