"""The official `openai` client on completions: prompts of every shape, stop strings, the old log probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_serve.engines.embedded.api_schema import CompletionRequest
from dsv4_serve.engines.embedded.completions import CompletionAnswer, CompletionChoice
from dsv4_serve.engines.embedded.request import FinishReason, TokenOutput
from dsv4_serve.engines.embedded.request_log import RequestRecord
from dsv4_serve.engines.embedded.tokenizer import BOS_ID
from embedded.api_harness import CACHED, CONTEXT, MODEL, ScriptedEngine, byte_ids, events, post, served, serving

TEXT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture(scope="module")
def url(engine: ScriptedEngine) -> Iterator[str]:
    with serving(engine) as base:
        yield base


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_whole_completion(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    answer = client.completions.create(model=MODEL, prompt="a<think>b")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (TEXT, "stop")
    assert engine.seen[-1][1] == [BOS_ID, *byte_ids(b"a<think>b")]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, len(TEXT) + 1)


def test_a_streamed_completion(client: openai.OpenAI) -> None:
    with client.completions.create(
        model=MODEL, prompt="x", max_tokens=9, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = list(stream)
    assert [chunk.choices[0].text for chunk in chunks] == list(TEXT[:9])
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 8 + ["length"]
    assert last.choices == []
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 9)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("hi", [[BOS_ID, *byte_ids(b"hi")]]),
        ("", [[BOS_ID]]),
        (["hi", "yo"], [[BOS_ID, *byte_ids(b"hi")], [BOS_ID, *byte_ids(b"yo")]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ],
)
def test_prompts_of_every_shape(
    client: openai.OpenAI, engine: ScriptedEngine, prompt: Any, ids: list[list[int]]
) -> None:
    before = len(engine.seen)
    answer = client.completions.create(model=MODEL, prompt=prompt, n=2, seed=0, max_tokens=3)
    assert [seen for _, seen, _ in engine.seen[before:]] == [one for one in ids for _ in range(2)]
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (index, TEXT[index % 2 :][:3]) for index in range(2 * len(ids))
    ]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, ids))
    assert answer.usage.completion_tokens == 6 * len(ids)


def test_cached_tokens_count_once_for_each_prompt(url: str) -> None:
    body = {"prompt": ["y" * CACHED, "z" * CACHED], "max_tokens": 1}
    cached = [
        post(url, "completions", body).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)
    ]
    assert cached == [0, 2 * CACHED]


@pytest.mark.parametrize(("prompt", "capacity", "wanted"), [(10, 32, 22), (10, CONTEXT * 2, CONTEXT - 10), (40, 32, 1)])
def test_without_a_limit_a_completion_fills_context_or_pools(prompt: int, capacity: int, wanted: int) -> None:
    request = CompletionRequest(prompt=[5] * prompt)
    answer = CompletionAnswer.prepare(served(ScriptedEngine(), capacity=capacity), request, RequestRecord("id", "r"))
    assert [params.max_tokens for params in answer.params] == [wanted]


def test_the_old_log_probabilities(client: openai.OpenAI) -> None:
    told = client.completions.create(
        model=MODEL, prompt="x", logprobs=1, extra_body={"dsv4_script": "aé€"}, max_tokens=6
    ).choices[0]
    assert told.text == "aé€"
    assert told.logprobs is not None
    assert told.logprobs.tokens == ["a", *(f"bytes:\\x{byte:02x}" for byte in "é€".encode())]
    assert told.logprobs.text_offset == [0, 1, 1, 2, 2, 2]
    assert told.logprobs.token_logprobs == [-position / 8 for position in range(6)]
    assert told.logprobs.top_logprobs is not None
    assert told.logprobs.top_logprobs[0] == {"a": 0.0}


@pytest.mark.parametrize("logprobs", [0, 2])
def test_log_probabilities_in_a_stream_add_up(url: str, logprobs: int) -> None:
    body = {"prompt": "x", "logprobs": logprobs, "dsv4_script": "abé😀 STOP never", "stop": ["STOP"]}
    whole = post(url, "completions", body).json()["choices"][0]
    pieces = [event["choices"][0] for event in events(post(url, "completions", body | {"stream": True}))]
    assert "".join(piece["text"] for piece in pieces) == whole["text"] == "abé😀 "
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [value for piece in pieces for value in piece["logprobs"][name]] == whole["logprobs"][name]
    assert len(whole["logprobs"]["tokens"]) == len("abé😀 ".encode())
    assert len(whole["logprobs"]["top_logprobs"][0]) == max(logprobs, 1)


def test_special_tokens_are_spelled_out(url: str) -> None:
    body = {"prompt": "x", "dsv4_script": "a<think>b</think>"}
    assert post(url, "completions", body).json()["choices"][0]["text"] == "a<think>b</think>"


def test_a_character_cut_off_by_the_limit(url: str) -> None:
    body = {"prompt": "x", "dsv4_script": "a😀", "max_tokens": 4, "logprobs": 0}
    choice = post(url, "completions", body).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("a\ufffd", "length")
    assert len(choice["logprobs"]["tokens"]) == 4


PIECES = st.lists(
    st.sampled_from([b"a", b"b", b"ab", "é".encode(), b"\xc3", b"\xa9", b"\xff"]), min_size=1, max_size=20
)
STOPS = st.lists(st.text(st.sampled_from("abé"), min_size=1, max_size=3), max_size=4)


@settings(max_examples=200, deadline=None)
@given(data=PIECES.map(b"".join), stops=STOPS, logprobs=st.sampled_from([None, 0]))
def test_a_stopped_choice_is_a_prefix_of_the_unstopped_one(data: bytes, stops: list[str], logprobs: int | None) -> None:
    text, told, finish = complete(data, stops, logprobs)
    whole, everything, _ = complete(data, [], logprobs)
    assert whole == data.decode(errors="replace")
    assert whole.startswith(text)
    assert not any(stop in text for stop in stops)
    if finish == "length":
        assert (text, told) == (whole, everything)
        assert not any(stop in whole for stop in stops)
    else:
        assert any(whole[len(text) :].startswith(stop) for stop in stops)
        assert told == everything[: len(told)]


def complete(data: bytes, stops: list[str], logprobs: int | None) -> tuple[str, list[str], str | None]:
    """Text, tokens with log probabilities, and finish reason of a choice fed one byte at a time."""
    request = CompletionRequest(prompt="x", stop=stops, logprobs=logprobs)
    choice = CompletionChoice(served(ScriptedEngine()), request, 0)
    text, told, finish = "", [], None
    for position, token_id in enumerate(byte_ids(data)):
        last: FinishReason | None = "length" if position + 1 == len(data) else None
        piece = choice.push(TokenOutput(token_id, 0.0, (), last))
        if piece is not None:
            text, finish = text + piece.text, piece.finish_reason
            told += [entry.token for entry in piece.logprobs or ()]
        if choice.done:
            break
    return text, told, finish
