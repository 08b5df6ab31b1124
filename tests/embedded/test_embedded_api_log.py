"""One line for each request."""

from __future__ import annotations

import json
import logging
import queue
import re
from collections.abc import Iterator

import httpx
import pytest

from dsv4_serve.engines.embedded.request_log import JsonFormatter
from embedded.api_harness import CACHED, DEADLINE_SECONDS, ScriptedEngine, chat_body, post, request_log, serving

LOGGER = "dsv4.embedded.requests"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(ScriptedEngine()) as base:
        yield base


@pytest.fixture
def lines() -> Iterator[queue.SimpleQueue[logging.LogRecord]]:
    with request_log() as records:
        yield records


def masked(record: logging.LogRecord) -> str:
    return re.sub(r"=\d+\.\d{3}s", "=Ts", record.getMessage())


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_line(url: str, lines: queue.SimpleQueue[logging.LogRecord], stream: bool) -> None:
    body = chat_body(f"{stream}" + "x" * 2 * CACHED, max_tokens=45, n=2, seed=0, dsv4_script="abc", stream=stream)
    for _ in range(2):
        answer = post(url, "chat/completions", body, **{"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
    assert " cached=0 " in masked(lines.get(timeout=DEADLINE_SECONDS))
    assert masked(lines.get(timeout=DEADLINE_SECONDS)) == (
        "request id=mine-1 route=/v1/chat/completions status=200 "
        f"prompt={516 + len(str(stream))} cached=256 out=8 ttft=Ts total=Ts finish=stop"
    )


def test_a_refused_request_says_why(url: str, lines: queue.SimpleQueue[logging.LogRecord]) -> None:
    answer = post(url, "completions", {"prompt": "x", "max_tokens": 0})
    assert masked(lines.get(timeout=DEADLINE_SECONDS)) == (
        f"request id={answer.headers['x-request-id']} route=/v1/completions status=400 total=Ts error=invalid_value"
    )


@pytest.mark.parametrize("wanted", ["", "two words", "x" * 200, "é"])
def test_an_id_that_would_spoil_the_log_is_replaced(url: str, wanted: str) -> None:
    answer = httpx.get(f"{url}/v1/models", headers=[(b"x-request-id", wanted.encode())])
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])


def test_probes_and_scrapes_are_not_logged(url: str, lines: queue.SimpleQueue[logging.LogRecord]) -> None:
    assert httpx.get(f"{url}/health").status_code == 200
    assert httpx.get(f"{url}/metrics").status_code == 200
    assert httpx.get(f"{url}/v1/models").status_code == 200
    assert "route=/v1/models" in lines.get(timeout=DEADLINE_SECONDS).getMessage()
    assert lines.empty()


def test_json_lines_hold_the_same_fields(url: str, lines: queue.SimpleQueue[logging.LogRecord]) -> None:
    post(url, "completions", {"prompt": "hi", "max_tokens": 2})
    entry = json.loads(JsonFormatter().format(lines.get(timeout=DEADLINE_SECONDS)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", entry.pop("time"))
    assert 0 <= entry.pop("ttft") <= entry.pop("total")
    assert entry.pop("id")
    assert entry == {
        "level": "info",
        "logger": LOGGER,
        "event": "request",
        "route": "/v1/completions",
        "status": 200,
        "prompt": 3,
        "cached": 0,
        "out": 2,
        "finish": "length",
    }


def test_json_lines_of_other_messages() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        record = logging.LogRecord("a", logging.ERROR, "f", 1, "failed: %s", ("é",), (ValueError, error, None))
    entry = json.loads(JsonFormatter().format(record))
    assert (entry["message"], entry["level"], entry["exception"]) == ("failed: é", "error", "ValueError: x")
