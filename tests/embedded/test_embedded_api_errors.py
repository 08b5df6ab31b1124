"""Errors over HTTP: status, OpenAI's shape, headers; and the routes beside the API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from dsv4_serve.engines.embedded.request import EngineDead, EngineError, PromptTooLong
from embedded.api_harness import (
    DEADLINE_SECONDS,
    MODEL,
    ScriptedEngine,
    chat_body,
    post,
    queue_full,
    request_log,
    serving,
)

CONTEXT = 64
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", chat_body()),
    ("completions", {"model": MODEL, "prompt": "hi"}),
]


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def url(engine: ScriptedEngine) -> Iterator[str]:
    with serving(engine, allow_script=False, context_length=CONTEXT) as base:
        yield base


@pytest.fixture
def refusing(engine: ScriptedEngine) -> Iterator[ScriptedEngine]:
    yield engine
    engine.refuse, engine.dies_after, engine.death = None, None, None


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(("route", "body"), ROUTES)
def test_an_unknown_model(url: str, route: str, body: dict[str, Any]) -> None:
    error = error_of(post(url, route, body | {"model": "gpt"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"] == "The model 'gpt' does not exist here; 'tiny' is served."


def test_an_unknown_model_is_no_model_to_retrieve(url: str) -> None:
    assert error_of(httpx.get(f"{url}/v1/models/gpt"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize(("route", "body"), ROUTES)
def test_no_model_means_the_one_there_is(url: str, route: str, body: dict[str, Any]) -> None:
    assert post(url, route, body | {"model": None}).json()["model"] == MODEL


@pytest.mark.parametrize(("route", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_more_tokens_than_the_context_holds(url: str, route: str, body: dict[str, Any], stream: bool) -> None:
    prompt = post(url, route, body | {"max_tokens": 1}).json()["usage"]["prompt_tokens"]
    room = CONTEXT - prompt
    assert post(url, route, body | {"max_tokens": room}).status_code == 200
    error = error_of(post(url, route, body | {"max_tokens": room + 1, "stream": stream}), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == (
        f"This model's context is 64 tokens, but 65 were asked for: {prompt} in the prompt and {room + 1} to "
        "generate. Shorten the prompt or lower max_tokens."
    )


def test_a_prompt_that_fills_the_context(url: str) -> None:
    assert post(url, "completions", {"prompt": [5] * (CONTEXT - 1)}).json()["usage"]["completion_tokens"] == 1
    error = error_of(post(url, "completions", {"prompt": [5] * CONTEXT}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


@pytest.mark.parametrize(("route", "body"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (queue_full(), 429, "queue_full"),
        (EngineDead("the engine loop ended: test"), 503, "engine_dead"),
        (EngineError("something else"), 503, "engine_error"),
        (PromptTooLong("needs 9 pages, the pool has 4"), 400, "context_length_exceeded"),
    ],
)
def test_what_the_engine_refuses(
    url: str,
    refusing: ScriptedEngine,
    route: str,
    body: dict[str, Any],
    stream: bool,
    n: int,
    refusal: EngineError,
    status: int,
    code: str,
) -> None:
    refusing.refuse = refusal
    answer = post(url, route, body | {"stream": stream, "n": n})
    error = error_of(answer, status)
    assert (error["code"], error["message"]) == (code, str(refusal))
    assert answer.headers.get("retry-after") == (None if status == 400 else "1")


@pytest.mark.parametrize(("route", "body"), ROUTES)
def test_an_engine_that_dies_in_a_stream_is_an_event(
    url: str, refusing: ScriptedEngine, route: str, body: dict[str, Any]
) -> None:
    refusing.dies_after = 3
    answer = post(url, route, body | {"stream": True})
    assert answer.status_code == 200
    last = answer.text.split("\n\n")[-2]
    assert '"code": "engine_dead"' in last
    assert "[DONE]" not in answer.text
    assert error_of(post(url, route, body), 503)["code"] == "engine_dead"


def test_the_official_client_sees_the_error_in_a_stream(url: str, refusing: ScriptedEngine) -> None:
    refusing.dies_after = 3
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(model=MODEL, prompt="hi", stream=True)
        with stream, pytest.raises(openai.APIError, match="the engine loop ended"):
            list(stream)


def test_a_bug_is_a_500_without_a_traceback(url: str, refusing: ScriptedEngine) -> None:
    refusing.refuse = ZeroDivisionError("secret detail")
    with request_log() as records:
        error = error_of(post(url, "completions", {"prompt": "x"}), 500)
        line = records.get(timeout=DEADLINE_SECONDS).getMessage()
    assert (error["type"], error["message"]) == (
        "server_error",
        "The server failed on this request; its log says why.",
    )
    assert "status=500" in line
    assert "error=ZeroDivisionError" in line


def test_health_follows_the_engine(url: str, refusing: ScriptedEngine) -> None:
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    refusing.death = "out of memory"
    answer = httpx.get(f"{url}/health")
    assert (answer.status_code, answer.json()) == (503, {"status": "dead", "reason": "out of memory"})


def test_what_the_engine_tells_of_itself(url: str) -> None:
    assert httpx.get(f"{url}/server_info").json() == {"model": "tiny", "running": 0}
    metrics = httpx.get(f"{url}/metrics")
    assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert metrics.text.endswith("dsv4_running_requests 0\n")


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"max_tokens": 0}, "max_tokens", "max_tokens=0: accepted is an integer >= 1"),
        ({"temperature": "hot"}, "temperature", 'temperature="hot": accepted is a number from 0 to 2'),
        ({"dsv4_script": "x"}, "dsv4_script", "dsv4_script needs an engine that was started with --allow-token-script"),
        (
            {"logit_bias": {"1": 1}},
            "logit_bias",
            'logit_bias={"1": 1.0} is not supported by this engine: accepted is {}',
        ),
        ({"stop_token_ids": [999]}, "stop_token_ids", "stop_token_ids holds the token id 999: accepted is 0 to 287"),
    ],
)
@pytest.mark.parametrize(("route", "base"), ROUTES)
def test_refusals_travel(
    url: str, route: str, base: dict[str, Any], body: dict[str, Any], param: str, message: str
) -> None:
    error = error_of(post(url, route, base | body), 400)
    assert (error["param"], error["message"]) == (param, message)


def test_an_unknown_prompt_token(url: str) -> None:
    error = error_of(post(url, "completions", {"prompt": [[5], [288]]}), 400)
    assert error["message"] == "prompt holds the token id 288: accepted is 0 to 287"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "assistant"}], "Invalid assistant message: content or tool_calls must be set"),
        (
            [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "c", "content": "x"}],
            "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
        ),
    ],
)
def test_a_conversation_that_cannot_be_rendered(url: str, messages: list[Any], message: str) -> None:
    assert error_of(post(url, "chat/completions", {"messages": messages}), 400)["message"] == message


def test_wrong_routes_and_methods(url: str) -> None:
    assert error_of(httpx.get(f"{url}/v1/embeddings"), 404)["message"] == "GET /v1/embeddings: Not Found"
    answer = httpx.get(f"{url}/v1/completions")
    assert error_of(answer, 405)["message"] == "GET /v1/completions: Method Not Allowed"
    assert answer.headers["allow"] == "POST"
