"""The bytes of streams, exactly; a change of this format is a change for every client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from embedded.api_harness import ScriptedEngine, chat_body, post, serving

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(ScriptedEngine()) as base:
        yield base


def stream_of(url: str, route: str, body: dict[str, Any]) -> str:
    """The body of the answer, with what differs from call to call replaced."""
    answer = post(url, route, body | {"stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    text = re.sub(r"(chatcmpl|cmpl)-[0-9a-f]{32}", "ID", answer.text)
    text = re.sub(r'"created": ?\d+', '"created":0', text)
    return re.sub(r"call_\w+", "CALL", text)


CHAT_HEAD = 'data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","system_fingerprint":null,'


def test_chat(url: str) -> None:
    assert stream_of(url, "chat/completions", chat_body(dsv4_script='a"é')) == "".join(
        f"{CHAT_HEAD}{rest}\n\n"
        for rest in (
            '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}',
            '"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]}',
            '"choices":[{"index":0,"delta":{"content":"\\""},"logprobs":null,"finish_reason":null}]}',
            '"choices":[{"index":0,"delta":{"content":"é"},"logprobs":null,"finish_reason":null}]}',
            '"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop"}]}',
        )
    ) + ("data: [DONE]\n\n")


def test_chat_with_usage(url: str) -> None:
    body = chat_body(dsv4_script="a", max_tokens=1, stream_options={"include_usage": True})
    assert stream_of(url, "chat/completions", body) == "".join(
        f"{CHAT_HEAD}{rest}\n\n"
        for rest in (
            '"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
            '"usage":null}',
            '"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}],"usage":null}',
            '"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length"}],"usage":null}',
            '"choices":[],"usage":{"prompt_tokens": 6, "completion_tokens": 1, "total_tokens": 7, '
            '"prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 0, '
            '"prompt_cache_miss_tokens": 6}}',
        )
    ) + ("data: [DONE]\n\n")


def test_chat_with_a_tool_call(url: str) -> None:
    call = '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    text = stream_of(url, "chat/completions", chat_body(dsv4_script=call, tools=[TOOL]))
    first, *_, last, done, end = text.split("\n\n")
    assert first.endswith('"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}')
    assert (
        f'{CHAT_HEAD}"choices":[{{"index":0,"delta":{{"tool_calls":[{{"index":0,"id":"CALL","type":"function",'
        '"function":{"name":"f","arguments":""}}]},"logprobs":null,"finish_reason":null}]}\n\n'
    ) in text
    assert last == (
        f'{CHAT_HEAD}"choices":[{{"index":0,"delta":{{"content":""}},"logprobs":null,"finish_reason":"tool_calls"}}]}}'
    )
    assert (done, end) == ("data: [DONE]", "")


def test_the_second_choice_has_its_index_in_every_chunk(url: str) -> None:
    text = stream_of(url, "chat/completions", chat_body(dsv4_script="a", n=2))
    for index in (0, 1):
        deltas = [line for line in text.split("\n\n") if line.startswith(f'{CHAT_HEAD}"choices":[{{"index":{index},')]
        assert len(deltas) == 3


COMPLETION_HEAD = 'data: {"id": "ID", "object": "text_completion", "created":0, "model": "tiny", '


def test_completion(url: str) -> None:
    body = {"prompt": "x", "dsv4_script": 'a"\u2028é'}
    assert stream_of(url, "completions", body) == "".join(
        f"{COMPLETION_HEAD}{rest}\n\n"
        for rest in (
            '"choices": [{"index": 0, "text": "a", "logprobs": null, "finish_reason": null}]}',
            '"choices": [{"index": 0, "text": "\\"", "logprobs": null, "finish_reason": null}]}',
            '"choices": [{"index": 0, "text": "\u2028", "logprobs": null, "finish_reason": null}]}',
            '"choices": [{"index": 0, "text": "é", "logprobs": null, "finish_reason": null}]}',
            '"choices": [{"index": 0, "text": "", "logprobs": null, "finish_reason": "stop"}]}',
        )
    ) + ("data: [DONE]\n\n")


def test_completion_with_usage_and_log_probabilities(url: str) -> None:
    body = {"prompt": "x", "dsv4_script": "a", "logprobs": 0, "stream_options": {"include_usage": True}}
    assert stream_of(url, "completions", body) == "".join(
        f"{COMPLETION_HEAD}{rest}\n\n"
        for rest in (
            '"choices": [{"index": 0, "text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [0.0], '
            '"top_logprobs": [{"a": 0.0}], "text_offset": [0]}, "finish_reason": null}], "usage": null}',
            '"choices": [{"index": 0, "text": "", "logprobs": {"tokens": [], "token_logprobs": [], '
            '"top_logprobs": [], "text_offset": []}, "finish_reason": "stop"}], "usage": null}',
            '"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4, '
            '"prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 0, '
            '"prompt_cache_miss_tokens": 2}}',
        )
    ) + ("data: [DONE]\n\n")
