"""`skip_special_tokens`, and what else a router adds to every request that it passes on."""

from __future__ import annotations

import json

import pytest

from dsv4_serve.engines.embedded.api_schema import ChatRequest, CompletionRequest
from dsv4_serve.engines.embedded.chat_format import ChatChoice, ChatFormat
from dsv4_serve.engines.embedded.request import TokenOutput
from dsv4_serve.engines.embedded.unsupported import refuse_unsupported
from dsv4_serve.engines.embedded.usage import Usage
from embedded.api_harness import MODEL, byte_ids, chat_body, tokenizer

# As sglang-router 0.3.2 sends them, whatever the client said.
ADDED_TO_ALL = {
    "no_stop_trim": False,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "return_hidden_states": False,
}
ADDED_TO_CHATS = {
    "logprobs": False,
    "continue_final_message": False,
    "separate_reasoning": True,
    "stream_reasoning": True,
}


def chat_text(token_ids: list[int], skip: bool) -> str:
    conversation = ChatFormat(tokenizer(), MODEL).convert(ChatRequest.model_validate(chat_body(stream=True)))
    choice = ChatChoice(conversation, tokenizer(), 0, Usage(), skip)
    text = ""
    for place, token_id in enumerate(token_ids):
        last = place + 1 == len(token_ids)
        for chunk in choice.push(TokenOutput(token_id, None, (), "length" if last else None)):
            (part,) = json.loads('{"choices":[{' + chunk.tail())["choices"]
            text += part["delta"].get("content") or ""
    return text


def test_a_router_s_additions_are_accepted() -> None:
    chat = ChatRequest.model_validate(chat_body() | ADDED_TO_ALL | ADDED_TO_CHATS)
    refuse_unsupported(chat, allow_script=False)
    completion = CompletionRequest.model_validate({"prompt": "a", "echo": False} | ADDED_TO_ALL)
    refuse_unsupported(completion, allow_script=False)


@pytest.mark.parametrize("skip", [False, True])
def test_a_stray_special_token_of_a_chat_is_text_only_when_asked_for(skip: bool) -> None:
    (stray,) = tokenizer().encode_markup("<｜title｜>")
    text = chat_text([*byte_ids(b"ab"), stray, *byte_ids(b"c")], skip)
    assert text == ("abc" if skip else "ab<｜title｜>c")


def test_markup_is_read_even_when_special_tokens_are_skipped() -> None:
    assert set(tokenizer().encode_markup("<think></think>")) < tokenizer().markup_ids < tokenizer().special_ids
