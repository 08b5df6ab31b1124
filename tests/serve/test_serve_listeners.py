"""What the front's connections are like beneath HTTP."""

from __future__ import annotations

import os
import socket

import uvloop
from starlette.types import Receive, Scope, Send

from dsv4_serve.engines.client import EngineClient
from dsv4_serve.front_protocol import TRANSPORT
from dsv4_serve.listeners import Listener, bind


def test_a_small_write_to_a_client_does_not_wait_for_an_acknowledgement() -> None:
    """Else the first token of a stream waits for what the client does not send for 40 ms (docs/benchmarks.md)."""
    found = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        transport = scope["extensions"][TRANSPORT]["transport"]
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as same:
            found.append(same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def ask() -> str:
        bound = bind("127.0.0.1", 0, "--port")
        client, listener = EngineClient(bound.getsockname()[1]), Listener(app, bound)
        text = await client.get_text("/")
        client.close()
        await listener.close()
        return text

    assert uvloop.run(ask()) == "ok"
    assert found == [1]
