"""An HTTP server that answers as an engine does, by path; what it was asked is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from dsv4_serve.engines.client import EngineClient


@dataclass
class Answers:
    """What the server says, by path: JSON, or a string as it is. Other paths are 404."""

    by_path: dict[str, Any]
    asked: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def answering(answers: Answers) -> Iterator[EngineClient]:
    """A client of a server that gives `answers`, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if body:
                answers.asked.append(json.loads(body))
            known = self.path in answers.by_path
            answer = answers.by_path[self.path] if known else {"error": "no such path"}
            text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(200 if known else 404)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _answer  # noqa: N815  the base class's names

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield EngineClient(server.server_address[1])
    server.shutdown()
    server.server_close()
