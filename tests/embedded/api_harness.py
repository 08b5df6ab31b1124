"""A deterministic engine behind the real HTTP application, served by uvicorn on a free loopback port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import logging.handlers
import queue
import socket
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from dsv4_serve.engines.embedded.generation import Served
from dsv4_serve.engines.embedded.request import EngineDead, QueueFull, SamplingParams, TokenOutput
from dsv4_serve.engines.embedded.server import build_app
from dsv4_serve.engines.embedded.tokenizer import (
    BOS_ID,
    EOS_ID,
    FILE_NAME,
    SPECIAL_TOKENS,
    ModelTokenizer,
    load_tokenizer,
    write_tokenizer,
)

MODEL = "tiny"
CONTEXT = 4096
VOCABULARY = len(SPECIAL_TOKENS) + 256 + 14
CACHED = 256
DEADLINE_SECONDS = 20


@cache
def tokenizer() -> ModelTokenizer:
    with tempfile.TemporaryDirectory() as directory:
        assert write_tokenizer(Path(directory)).name == FILE_NAME
        return load_tokenizer(Path(directory))


def byte_ids(data: bytes) -> list[int]:
    return [len(SPECIAL_TOKENS) + byte for byte in data]


@dataclass
class ScriptedEngine:
    """Says `text` (or the request's script), then EOS, over and over; the seed rotates where it starts.

    Log probabilities are -(token's position)/8, with its neighbours as alternatives. A prompt longer than 256 tokens
    has them cached from its second use on.
    """

    text: bytes = b"The quick brown fox jumps over the lazy dog."
    refuse: Exception | None = None
    dies_after: int | None = None
    endless: bool = False
    death: str | None = None
    seen: list[tuple[str, list[int], SamplingParams]] = field(default_factory=list)
    open_requests: set[str] = field(default_factory=set)
    all_closed: threading.Event = field(default_factory=threading.Event)
    started: bool = False
    produced: int = 0

    def start(self) -> None:
        self.started = True

    async def stop(self) -> None:
        self.started = False

    def dead(self) -> str | None:
        return self.death

    def last_prompt(self) -> str:
        """The prompt of the latest request as text, special tokens spelled out."""
        return b"".join(map(tokenizer().bytes_of, self.seen[-1][1])).decode()

    def server_info(self) -> dict[str, object]:
        return {"model": MODEL, "running": len(self.open_requests)}

    def metrics_text(self) -> str:
        return f"# TYPE dsv4_running_requests gauge\ndsv4_running_requests {len(self.open_requests)}\n"

    async def generate(
        self, request_id: str, prompt_ids: list[int], params: SamplingParams
    ) -> AsyncGenerator[TokenOutput, None]:
        if self.refuse is not None:
            raise self.refuse
        cached = CACHED if len(prompt_ids) > CACHED and prompt_ids in [ids for _, ids, _ in self.seen] else 0
        self.seen.append((request_id, prompt_ids, params))
        assert request_id not in self.open_requests
        self.open_requests.add(request_id)
        self.all_closed.clear()
        try:
            for position in range(params.max_tokens):
                await asyncio.sleep(0.001 if self.endless else 0)
                if self.dies_after is not None and position >= self.dies_after:
                    raise EngineDead("the engine loop ended: test")
                self.produced += 1
                output = self._output(position, params, cached)
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self.open_requests.discard(request_id)
            if not self.open_requests:
                self.all_closed.set()

    def _output(self, position: int, params: SamplingParams, cached: int) -> TokenOutput:
        ids = list(params.script) if params.script is not None else self._own_ids(params.seed or 0)
        token = ids[position % len(ids)]
        logprob = None if params.logprobs is None else -position / 8
        alternatives = [((token + step) % VOCABULARY, -(position + step) / 8) for step in range(params.logprobs or 0)]
        stopped = token in params.stop_token_ids
        finish = "stop" if stopped else "length" if position + 1 == params.max_tokens else None
        return TokenOutput(token, logprob, tuple(alternatives), finish, cached)  # type: ignore[arg-type]

    def _own_ids(self, seed: int) -> list[int]:
        ids = byte_ids(self.text)
        turn = seed % len(ids)
        return ids[turn:] + ids[:turn] + ([] if self.endless else [EOS_ID])


def served(
    engine: ScriptedEngine, *, allow_script: bool = True, context_length: int = CONTEXT, capacity: int | None = None
) -> Served:
    return Served(
        engine=engine,
        tokenizer=tokenizer(),
        model_name=MODEL,
        vocab_size=VOCABULARY,
        context_length=context_length,
        capacity=capacity or context_length,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        allow_script=allow_script,
    )


@contextlib.contextmanager
def serving(engine: ScriptedEngine, *, allow_script: bool = True, context_length: int = CONTEXT) -> Iterator[str]:
    """The base URL of a server on `engine`; on exit it has shut down cleanly."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = build_app(served(engine, allow_script=allow_script, context_length=context_length))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not server.started:
            assert time.monotonic() < deadline
            assert thread.is_alive()
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(DEADLINE_SECONDS)
        listener.close()
    assert not thread.is_alive()
    assert not engine.started


@contextlib.contextmanager
def request_log() -> Iterator[queue.SimpleQueue[logging.LogRecord]]:
    """The records of the request log as they come; a request is logged just after its client has the answer."""
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    logger = logging.getLogger("dsv4.embedded.requests")
    handler = logging.handlers.QueueHandler(records)
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield records
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def queue_full() -> QueueFull:
    return QueueFull("256 requests wait already; try again later")


def post(url: str, route: str, body: object, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/{route}", json=body, headers=headers, timeout=DEADLINE_SECONDS)


def chat_body(content: str = "hi", **fields: object) -> dict[str, object]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The JSON events of a stream; it must end with [DONE]."""
    assert answer.status_code == 200
    *lines, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(line) for line in lines]
