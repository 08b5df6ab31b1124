"""Asks for an API key on everything but health and the status page's frame. A raw ASGI middleware."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from dsv4_serve.api_keys import ApiKeys
from dsv4_serve.openai_errors import bad_key, send_error

# Probes carry no key. The page's frame holds no data: it asks for the key and sends it with /status.json.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/startupz", "/health", "/", "/status.js", "/chart.js", "/status.css"})
BEARER = b"bearer "


class KeyGate:
    """401 in OpenAI's shape unless the request bears one of `keys`; where none is required everything passes."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self.app = app
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self.keys.required or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        offered = _offered(scope)
        if offered is None or not self.keys.accept(offered):
            await send_error(send, bad_key(given=offered is not None))
            return
        await self.app(scope, receive, send)


def _offered(scope: Scope) -> bytes | None:
    for name, value in scope["headers"]:
        if name == b"authorization" and value[: len(BEARER)].lower() == BEARER:
            return bytes(value[len(BEARER) :].strip())
    return None
