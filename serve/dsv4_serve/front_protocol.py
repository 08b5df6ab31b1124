"""uvicorn's HTTP/1.1 protocol with what a server that strangers reach needs besides.

Limits of size and time for the head of a request, errors in the API's own form, and a way to drop a connection.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dsv4_serve.openai_errors import ApiError, head_too_large, head_too_slow, not_http

TRANSPORT = "dsv4.connection"
MAX_HEAD_BYTES = 64 << 10
HEAD_SECONDS = 30.0


class FrontProtocol(HttpToolsProtocol):
    """One connection. A head that is too large, too slow or no HTTP gets its answer and ends the connection."""

    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _refusal: ApiError | None = None

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(head_too_large(MAX_HEAD_BYTES))
        elif self._head_timer is None and self._head_bytes:
            # Only a head that did not arrive at once needs a timer: hardly any.
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._refuse, head_too_slow(HEAD_SECONDS))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._taken = 0
        self.scope["extensions"] = {TRANSPORT: {"transport": self.transport}}

    def on_url(self, url: bytes) -> None:
        self._take(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._take(name + value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for a request that it cannot parse, or whose parsing was broken off here."""
        refusal = self._refusal or not_http()
        body = json.dumps(refusal.body()).encode()
        phrase = HTTPStatus(refusal.status).phrase
        head = f"HTTP/1.1 {refusal.status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.transport.write(f"{head}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()

    def _take(self, part: bytes) -> None:
        self._taken += len(part)
        if self._taken > MAX_HEAD_BYTES:
            self._refusal = head_too_large(MAX_HEAD_BYTES)
            raise httptools.HttpParserError(self._refusal.message)

    def _refuse(self, refusal: ApiError) -> None:
        if not self.transport.is_closing():
            self._refusal = refusal
            self.send_400_response(refusal.message)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def abort_connection(scope: Scope) -> None:
    """Drop a client's connection with whatever it has not read yet."""
    scope["extensions"][TRANSPORT]["transport"].abort()
