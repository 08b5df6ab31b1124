"""An engine stand-in: speaks the engine's HTTP contract, emits tokens at a fixed rate, fails on demand.

    python tests/serve/standin.py --port N [--rate 50] [--first-token 0.02] [--start-delay 0] [...]

A prompt that begins with `standin:` selects a failure for that request: `standin:429`, `standin:503`,
`standin:context`, `standin:cut` (the connection breaks after three tokens), `standin:die` (the process
exits), `standin:orphan` (the same, and a child in a group of its own keeps its sockets and its output open),
`standin:hang` (no first token, ever), `standin:stuck` (the same for all requests from now on), `standin:eat` (takes
memory until somebody ends it), `standin:flood` (an endless stream as fast as the client reads), `standin:pause` (three
tokens, then none).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

# It is started as a script, by its path.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from serve.standin_answers import (
    METRICS,
    REFUSALS,
    Receive,
    Scope,
    Send,
    completion,
    delta,
    disconnected,
    read_body,
    reply,
    reply_text,
    sse,
)


@dataclass
class Standin:
    """One stand-in process; `rate` is tokens per second and stream, `first_token` a delay in seconds."""

    rate: float = 50.0
    first_token: float = 0.02
    never_ready: bool = False
    extra_metrics: str = ""
    indexer_dtype: str = "fp4"
    kv_dtype: str = "v4"
    model: str = "dsv4-tiny"
    lag: float = 0.0
    running: int = 0
    last_end: float = float("-inf")
    stuck: bool = False
    aborted: int = 0
    generated: int = 0
    started: float = field(default_factory=time.monotonic)
    last_headers: dict[str, str] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        path = scope["path"]
        if path == "/health":
            await reply(send, 200, {"status": "ok"})
        elif path == "/server_info":
            await reply(send, 200, self.server_info())
        elif path == "/metrics":
            text = METRICS % {"generated": self.generated, "running": self.running} + self.extra_metrics
            await reply_text(send, text)
        elif path == "/v1/models":
            await reply(send, 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        else:
            await self.generate(scope, receive, send)

    def server_info(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "indexer_dtype": self.indexer_dtype,
            "kv_dtype": self.kv_dtype,
            "backends": [{"op": "paged_logits", "selected": "reference", "reason": "known-answer test passed"}],
            "context_length": 4096,
            "hicache": False,
            "speculative": "off",
            "running": self.running or int(time.monotonic() - self.last_end < self.lag),
            "queued": 0,
            "aborted_requests": self.aborted,
            "last_headers": self.last_headers,
            "startup_phases": {"weights": 0.25, "pools": 0.125},
        }

    async def generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.last_headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        body = json.loads(await read_body(receive))
        chat = scope["path"].endswith("chat/completions")
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        failure = prompt.removeprefix("standin:") if prompt.startswith("standin:") else ""
        if self.never_ready or failure in REFUSALS:
            status, kind, code, message = REFUSALS[failure or "503"]
            error = {"message": message, "type": kind, "param": None, "code": code}
            retry = [(b"retry-after", b"7")] if status in (429, 503) else []
            await reply(send, status, {"error": error}, retry)
            return
        if failure == "orphan":
            leave_an_orphan()
        if failure in ("die", "orphan"):
            os._exit(13)
        if failure == "eat":
            eat_memory()
        self.running += 1
        gone = asyncio.create_task(disconnected(receive))
        work = asyncio.create_task(self.emit(send, body, chat, failure))
        try:
            await asyncio.wait({gone, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                self.aborted += 1
                work.cancel()
            else:
                work.result()
        finally:
            self.running -= 1
            self.last_end = time.monotonic()
            gone.cancel()

    async def emit(self, send: Send, body: dict[str, Any], chat: bool, failure: str) -> None:
        count = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        self.stuck = self.stuck or failure == "stuck"
        if self.stuck or failure == "hang":
            await asyncio.sleep(3600)
        if not body.get("stream"):
            await asyncio.sleep(self.first_token + count / self.rate)
            self.generated += count
            await reply(send, 200, completion(chat, self.model, "word " * count, count))
            return
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream")],
            }
        )
        if failure == "flood":
            await flood(send)
        chunk = sse(delta(chat, self.model, "word "))
        due = time.monotonic() + self.first_token
        for i in range(count):
            if failure == "pause" and i == 3:
                await asyncio.sleep(3600)
            if failure == "cut" and i == 3:
                raise ConnectionResetError("the stand-in breaks off, as asked")
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += 1 / self.rate
            self.generated += 1
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


def leave_an_orphan() -> None:
    """Long enough for a test to see it, and gone by itself."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(15)
        os._exit(0)


def eat_memory() -> None:
    taken = []
    while True:
        taken.append(bytearray(b"x" * (8 << 20)))


async def flood(send: Send) -> None:
    event = sse({"filler": "x" * 4096})
    while True:
        await send({"type": "http.response.body", "body": event, "more_body": True})
        # To a client that is gone, sending returns at once, for ever.
        await asyncio.sleep(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--first-token", type=float, default=0.02)
    parser.add_argument("--start-delay", type=float, default=0.0)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--crash-at-start", action="store_true")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--write-at-start", help="a file to write before it listens")
    parser.add_argument("--extra-metrics", default="")
    parser.add_argument("--indexer-dtype", default="fp4")
    parser.add_argument("--kv-dtype", default="v4")
    parser.add_argument("--lag", type=float, default=0.0, help="seconds that the count of requests lags behind")
    args = parser.parse_args()
    print("standin: starting", flush=True)
    time.sleep(args.start_delay)
    if args.write_at_start:
        with Path(args.write_at_start).open("wb", buffering=0) as file:
            file.write(bytes(1 << 16))
    if args.crash_at_start:
        print("standin: out of memory: 3 bytes short", file=sys.stderr, flush=True)
        sys.exit(9)
    taken = ("rate", "first_token", "never_ready", "extra_metrics", "indexer_dtype", "kv_dtype", "lag")
    standin = Standin(**{name: getattr(args, name) for name in taken})
    config = uvicorn.Config(
        standin, host="127.0.0.1", port=args.port, log_level="error", lifespan="off", access_log=False
    )
    server = uvicorn.Server(config)
    if args.ignore_sigterm:
        server.handle_exit = lambda sig, frame: None  # type: ignore[method-assign]
    server.run()


if __name__ == "__main__":
    main()
