"""A client that goes away ends its generation, whatever it was waiting for."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from embedded.api_harness import DEADLINE_SECONDS, MODEL, ScriptedEngine, chat_body, post, request_log, serving

BODIES: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", chat_body()),
    ("completions", {"model": MODEL, "prompt": "hi"}),
]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(endless=True)


@pytest.fixture
def url(engine: ScriptedEngine) -> Iterator[str]:
    with serving(engine) as base:
        yield base


@pytest.mark.parametrize(("route", "body"), BODIES)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_closes_the_generation(
    url: str, engine: ScriptedEngine, route: str, body: dict[str, Any], n: int, stream: bool
) -> None:
    with connection(url, route, body | {"n": n, "stream": stream, "max_tokens": 4000}) as client:
        if stream:
            assert client.recv(64).startswith(b"HTTP/1.1 200 OK")
        while len(engine.seen) < n:
            pass
        assert len(engine.open_requests) == n
    assert engine.all_closed.wait(DEADLINE_SECONDS)
    assert engine.produced < 4000 * n
    produced = engine.produced
    assert post(url, route, body | {"max_tokens": 2}).status_code == 200
    assert engine.produced == produced + 2


def test_a_stop_string_closes_the_generation(url: str, engine: ScriptedEngine) -> None:
    answer = post(url, "completions", {"prompt": "x", "stop": "quick", "max_tokens": 4000})
    assert answer.json()["choices"][0]["text"] == "The "
    assert engine.all_closed.is_set()
    assert engine.produced == len("The quick")


def test_one_choice_that_stops_leaves_the_others_running(url: str, engine: ScriptedEngine) -> None:
    body = chat_body(n=2, seed=0, stop="The", max_tokens=60)
    choices = post(url, "chat/completions", body).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == [
        "",
        "he quick brown fox jumps over the lazy dog.",
    ]
    assert engine.all_closed.is_set()


def test_a_disconnect_is_logged_as_such(url: str) -> None:
    with request_log() as records:
        with connection(url, "completions", {"prompt": "hi", "stream": True}) as client:
            client.recv(64)
        line = records.get(timeout=DEADLINE_SECONDS).getMessage()
    assert "status=499" in line
    assert "finish=disconnect" in line


def connection(url: str, route: str, body: dict[str, Any]) -> socket.socket:
    """A socket that has sent the request and read nothing."""
    target = urlsplit(url)
    assert target.hostname is not None
    data = json.dumps(body).encode()
    client = socket.create_connection((target.hostname, target.port or 0), timeout=DEADLINE_SECONDS)
    head = f"POST /v1/{route} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    return client
