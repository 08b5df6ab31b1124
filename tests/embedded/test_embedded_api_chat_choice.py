"""What the tokens of one chat choice become, whatever they are."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4_serve.engines.embedded.api_schema import ChatRequest
from dsv4_serve.engines.embedded.chat_format import ChatChoice, ChatFormat
from dsv4_serve.engines.embedded.request import TokenOutput
from dsv4_serve.engines.embedded.usage import Usage
from embedded.api_harness import MODEL, byte_ids, chat_body, tokenizer

PADDING = [280, 281]
TOKENS = st.lists(st.sampled_from(byte_ids("abé😀".encode() + b"\xff") + PADDING), min_size=1, max_size=12)
STOPS = st.lists(st.text(st.sampled_from("abé"), min_size=1, max_size=3), max_size=4)
FORMAT = ChatFormat(tokenizer(), MODEL)


def answer(token_ids: list[int], **fields: Any) -> tuple[str, list[dict[str, Any]], str, Usage]:
    """Content, log probabilities, finish reason and usage of a choice that ends at its token limit."""
    request = ChatRequest.model_validate(chat_body(stream=True, logprobs=True, **fields))
    usage = Usage()
    choice = ChatChoice(FORMAT.convert(request), tokenizer(), 0, usage)
    text, told, finish = "", [], ""
    for position, token_id in enumerate(token_ids):
        last = position + 1 == len(token_ids)
        for chunk in choice.push(TokenOutput(token_id, -1.0, ((token_id, -1.0),), "length" if last else None)):
            (part,) = json.loads('{"choices":[{' + chunk.tail())["choices"]
            text += part["delta"].get("content") or part["delta"].get("reasoning_content") or ""
            for entries in (part["logprobs"] or {}).values():
                told += entries
            finish = part["finish_reason"] or finish
        if choice.done:
            break
    return text, told, finish, usage


@settings(max_examples=300, deadline=None)
@given(token_ids=TOKENS)
def test_every_byte_is_shown_and_every_token_has_its_log_probability(token_ids: list[int]) -> None:
    text, told, finish, usage = answer(token_ids)
    data = b"".join(map(tokenizer().bytes_of, token_ids))
    assert text == data.decode(errors="replace")
    assert [entry["bytes"] for entry in told] == [list(tokenizer().bytes_of(token_id)) for token_id in token_ids]
    assert (finish, usage.completion_tokens) == ("length", len(token_ids))


@settings(max_examples=100, deadline=None)
@given(token_ids=TOKENS)
def test_the_same_holds_for_reasoning(token_ids: list[int]) -> None:
    text, told, finish, _ = answer(token_ids, thinking={"type": "enabled"})
    assert text == b"".join(map(tokenizer().bytes_of, token_ids)).decode(errors="replace")
    assert (len(told), finish) == (len(token_ids), "length")


@settings(max_examples=300, deadline=None)
@given(token_ids=TOKENS, stops=STOPS)
def test_a_stop_string_is_never_shown(token_ids: list[int], stops: list[str]) -> None:
    text, told, finish, usage = answer(token_ids, stop=stops)
    whole, everything, _, _ = answer(token_ids)
    assert not any(stop in text for stop in stops)
    assert whole.startswith(text)
    if finish == "length":
        assert (text, told) == (whole, everything)
        assert usage.completion_tokens == len(token_ids)
    else:
        assert finish == "stop"
        assert any(whole[len(text) :].startswith(stop) for stop in stops)
