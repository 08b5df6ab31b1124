"""The proxy: bytes untouched, validation, refusals, pass-through, disconnects, broken engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.harness import MODEL, Launcher, chat_body, wait_until


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


def engine_url(launcher: Launcher) -> str:
    command = launcher.get("/manifest").json()["engine"]["command"]
    return f"http://127.0.0.1:{command[command.index('--port') + 1]}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_is_the_engines_byte_for_byte(launcher: Launcher, path: str, stream: bool) -> None:
    body = {"model": MODEL, "max_tokens": 5, "stream": stream}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    fronted = launcher.http.post(launcher.url + path, json=body)
    direct = launcher.http.post(engine_url(launcher) + path, json=body)
    assert fronted.status_code == direct.status_code == 200
    assert fronted.content == direct.content
    assert fronted.headers["content-type"] == direct.headers["content-type"]
    assert fronted.content.endswith(b"data: [DONE]\n\n") == stream


def test_tokens_arrive_as_they_are_generated(launcher: Launcher) -> None:
    with launcher.http.stream(
        "POST", launcher.url + "/v1/chat/completions", json=chat_body(stream=True, max_tokens=40)
    ) as answer:
        chunks = [chunk for chunk in answer.iter_raw() if chunk]
    # At 200 tokens a second a front that gathered the answer would deliver one chunk.
    assert len(chunks) > 10
    assert b"".join(chunks).count(b"data: {") == 40


def test_the_body_reaches_the_engine_untouched_but_not_the_clients_key(launcher: Launcher) -> None:
    raw = json.dumps(chat_body("grüße"), indent=7).encode()
    headers = {"Authorization": "Bearer secret", "X-Request-Id": "mine-1", "Content-Type": "application/json"}
    answer = launcher.http.post(launcher.url + "/v1/chat/completions", content=raw, headers=headers)
    seen = launcher.engine_info()["last_headers"]
    assert answer.headers["x-request-id"] == seen["x-request-id"] == "mine-1"
    assert seen["content-length"] == str(len(raw))
    assert "authorization" not in seen


def test_a_request_without_an_id_gets_one(launcher: Launcher) -> None:
    ids = {launcher.chat().headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(each.startswith("req-") for each in ids)
    bad = launcher.http.post(launcher.url + "/v1/completions", json={}, headers={"x-request-id": "a b\tc"})
    assert bad.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"n": 0}, "n"),
        ({"stop": 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"seed": "x"}, "seed"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 50, "logprobs": True}, "top_logprobs"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"presence_penalty": "a"}, "presence_penalty"),
        ({"frequency_penalty": 9}, "frequency_penalty"),
        ({"logit_bias": []}, "logit_bias"),
        ({"response_format": "json"}, "response_format"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"thinking": "on"}, "thinking"),
        ({"user": 5}, "user"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"model": 5}, "model"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_wrong_field_is_400_and_named(launcher: Launcher, fields: dict[str, Any], param: str) -> None:
    before = launcher.engine_info()["last_headers"]
    answer = launcher.chat(**fields)
    error = error_of(answer)
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert param in error["message"]
    assert launcher.engine_info()["last_headers"] == before, "the engine was asked"


@pytest.mark.parametrize("prompt", [5, [], [[]], ["a", 5], {"a": 1}, None])
def test_a_wrong_prompt_is_400(launcher: Launcher, prompt: object) -> None:
    body = {"model": MODEL, "prompt": prompt}
    answer = launcher.http.post(launcher.url + "/v1/completions", json=body)
    assert answer.status_code == 400
    assert error_of(answer)["param"].startswith("prompt")


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b'{"model": NaN}'])
def test_malformed_json_is_400(launcher: Launcher, raw: bytes) -> None:
    answer = launcher.http.post(launcher.url + "/v1/chat/completions", content=raw)
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_request_error"


def test_unknown_and_missing_model(launcher: Launcher) -> None:
    unknown = launcher.chat(model="gpt-7")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "model_not_found")
    body = chat_body()
    del body["model"]
    missing = launcher.http.post(launcher.url + "/v1/chat/completions", json=body)
    assert (missing.status_code, error_of(missing)["param"]) == (400, "model")


def test_models_are_listed_and_described(launcher: Launcher) -> None:
    [card] = launcher.get("/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", 4096)
    assert launcher.get(f"/v1/models/{MODEL}").json() == card
    for unknown in ("other", "org/other"):
        assert error_of(launcher.get(f"/v1/models/{unknown}"))["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/embeddings", 404, "unknown_url"),
        ("POST", "/flush_cache", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/docs", 404, "unknown_url"),
    ],
)
def test_routes_are_an_allow_list(launcher: Launcher, method: str, path: str, status: int, code: str) -> None:
    answer = launcher.http.request(method, launcher.url + path)
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [("429", 429, "queue_full"), ("503", 503, "engine_dead"), ("context", 400, "context_length_exceeded")],
)
def test_the_engines_refusals_pass_through(launcher: Launcher, failure: str, status: int, code: str) -> None:
    answer = launcher.chat(f"standin:{failure}", stream=True)
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    assert answer.headers.get("retry-after") == (None if status == 400 else "7")


def test_a_client_that_leaves_cancels_the_engines_work(launcher: Launcher) -> None:
    aborted = launcher.engine_info()["aborted_requests"]
    with launcher.http.stream(
        "POST", launcher.url + "/v1/chat/completions", json=chat_body(stream=True, max_tokens=100_000)
    ) as answer:
        next(answer.iter_raw())
    wait_until(lambda: launcher.engine_info()["aborted_requests"] == aborted + 1, "the engine noticed")
    assert launcher.engine_info()["running"] == 0
    with pytest.raises(httpx.ReadTimeout):
        launcher.http.post(
            launcher.url + "/v1/completions", json={"model": MODEL, "prompt": "standin:hang"}, timeout=0.3
        )
    wait_until(lambda: launcher.engine_info()["aborted_requests"] == aborted + 2, "before the first byte too")


def test_a_stream_that_the_engine_breaks_off_ends_in_an_error_event(launcher: Launcher) -> None:
    answer = launcher.chat("standin:cut", stream=True, max_tokens=10)
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert [json.loads(event).get("error", {}).get("code") for event in events] == [None, None, None, "engine_lost"]
    assert "[DONE]" not in answer.text


def test_requests_are_counted_by_status(model_dir: Path) -> None:
    with Launcher(model_dir, standin=["--rate", "500"]) as fresh:
        fresh.chat()
        fresh.chat(max_tokens=0)
        fresh.chat(model="other")
        fresh.chat("standin:429")
        fresh.chat("standin:cut", stream=True)
        lines = fresh.get("/metrics").text.splitlines()
    counted = sorted(line for line in lines if line.startswith("dsv4_requests_total{"))
    assert counted == [f'dsv4_requests_total{{status="{code}"}} 1.0' for code in (200, 400, 404, 429, 502)]
    assert "dsv4_front_first_byte_seconds_count 3.0" in lines


def test_too_large_a_body(model_dir: Path) -> None:
    with Launcher(model_dir, ["--max-body-mib", "1"]) as small:
        answer = small.chat("x" * (1 << 20))
        assert (answer.status_code, error_of(answer)["code"]) == (413, "request_too_large")

        def chunks() -> Any:
            yield from (b"x" * (1 << 16) for _ in range(20))

        unsized = small.http.post(small.url + "/v1/completions", content=chunks())
        assert unsized.status_code == 413
        assert small.chat().status_code == 200


def test_too_many_at_once_is_429_with_retry_after(model_dir: Path) -> None:
    endless = chat_body(stream=True, max_tokens=100_000)
    with (
        Launcher(model_dir, ["--max-inflight", "1"]) as narrow,
        narrow.http.stream("POST", narrow.url + "/v1/chat/completions", json=endless),
    ):
        second = narrow.chat()
        assert (second.status_code, error_of(second)["code"]) == (429, "too_many_requests")
        assert second.headers["retry-after"] == "1"
