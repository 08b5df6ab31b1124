"""The official `openai` client on chat completions: plain, streamed, tools, reasoning, log probabilities."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from dsv4_serve.engines.embedded.tokenizer import EOS_ID
from embedded.api_harness import CACHED, MODEL, ScriptedEngine, byte_ids, chat_body, events, post, serving

TEXT = "The quick brown fox jumps over the lazy dog."
USER: Any = [{"role": "user", "content": "Weather in Paris?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
]
OPEN = "\n\n<｜DSML｜tool_calls>\n"
CALL = (
    '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
)
CLOSE = "</｜DSML｜tool_calls>"


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


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=USER)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(TEXT) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(TEXT) + 1


def test_a_streamed_answer_is_the_whole_one(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL, messages=USER, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in [*chunks, last]}) == 1
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == len(TEXT) + 1


def test_the_asynchronous_client(url: str) -> None:
    async def several() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(model=MODEL, messages=USER, seed=seed) for seed in range(8))
            )
            return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(several()) == [TEXT[seed:] + TEXT[:seed] for seed in range(8)]


def test_cached_tokens_are_reported(client: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "x" * (CACHED + 40)}]
    cached = []
    for _ in range(2):
        usage = client.chat.completions.create(model=MODEL, messages=long).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, CACHED]


def test_sampling_reaches_the_engine(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=USER,
        temperature=0.25,
        top_p=0.5,
        seed=7,
        max_completion_tokens=3,
        reasoning_effort="high",
        extra_body={"top_k": 5, "ignore_eos": True, "stop_token_ids": [9]},
    )
    _, prompt_ids, params = engine.seen[-1]
    assert (params.temperature, params.top_p, params.top_k, params.seed, params.max_tokens) == (0.25, 0.5, 5, 7, 3)
    assert params.stop_token_ids == {9}
    client.chat.completions.create(model=MODEL, messages=USER, extra_body={"top_k": -1})
    _, prompt_ids, params = engine.seen[-1]
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (1.0, 1.0, 0, None)
    assert params.stop_token_ids == {EOS_ID}
    assert params.max_tokens == 4096 - len(prompt_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_n_choices_have_their_own_seeds_and_indices(client: openai.OpenAI, stream: bool) -> None:
    texts = ["", "", ""]
    if stream:
        with client.chat.completions.create(
            model=MODEL, messages=USER, n=3, seed=4, max_tokens=5, stream=True, stream_options={"include_usage": True}
        ) as chunks:
            for chunk in chunks:
                usage = chunk.usage
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
    else:
        answer = client.chat.completions.create(model=MODEL, messages=USER, n=3, seed=4, max_tokens=5)
        usage = answer.usage
        texts = [choice.message.content or "" for choice in answer.choices]
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert texts == [TEXT[start : start + 5] for start in (4, 5, 6)]
    assert usage is not None
    assert usage.completion_tokens == 15
    assert usage.total_tokens == usage.prompt_tokens + 15


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    script = CALL + CLOSE if choice != "auto" else "Let me look." + OPEN + CALL + CLOSE
    how: Any = {"tools": TOOLS, "tool_choice": choice, "extra_body": {"dsv4_script": script}}
    if stream:
        content, name, arguments, finish = "", "", "", None
        with client.chat.completions.create(model=MODEL, messages=USER, stream=True, **how) as chunks:
            for chunk in chunks:
                delta = chunk.choices[0].delta
                content += delta.content or ""
                for call in delta.tool_calls or ():
                    assert call.function is not None
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
                finish = chunk.choices[0].finish_reason or finish
    else:
        answer = client.chat.completions.create(model=MODEL, messages=USER, **how).choices[0]
        content, finish = answer.message.content or "", answer.finish_reason
        assert answer.message.tool_calls is not None
        (only,) = answer.message.tool_calls
        assert only.type == "function"
        name, arguments = only.function.name, only.function.arguments
    assert (name, json.loads(arguments), finish) == ("get_weather", {"city": "Paris", "days": 3}, "tool_calls")
    assert content == ("Let me look." if choice == "auto" else "")


def test_the_answer_of_a_tool_goes_back_to_the_model(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    script: Any = {"dsv4_script": OPEN + CALL + CLOSE}
    answer = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, extra_body=script)
    message = answer.choices[0].message
    assert message.tool_calls is not None
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "20 degrees"}
    history: Any = [*USER, message.model_dump(), result]
    client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
    assert "<tool_result>20 degrees</tool_result>" in engine.last_prompt()


def test_tool_choice_none_hides_the_tools(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS)
    assert '"name": "get_weather"' in engine.last_prompt()
    client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, tool_choice="none")
    hidden = engine.last_prompt()
    client.chat.completions.create(model=MODEL, messages=USER)
    assert hidden == engine.last_prompt() == "<｜begin▁of▁sentence｜><｜User｜>Weather in Paris?<｜Assistant｜></think>"


@pytest.mark.parametrize(
    "asked",
    [
        {"thinking": {"type": "enabled"}},
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"thinking": True}},
        {"chat_template_kwargs": {"enable_thinking": True}},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_when_asked_for(url: str, asked: dict[str, Any], stream: bool) -> None:
    body = chat_body(**asked, dsv4_script="I think</think>I say", stream=stream)
    answer = post(url, "chat/completions", body)
    if stream:
        deltas = [event["choices"][0]["delta"] for event in events(answer)]
        thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        said = "".join(delta.get("content") or "" for delta in deltas)
    else:
        message = answer.json()["choices"][0]["message"]
        thought, said = message["reasoning_content"], message["content"]
        assert answer.json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 7}
    assert (thought, said) == ("I think", "I say")


@pytest.mark.parametrize("asked", [{}, {"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}])
def test_no_reasoning_unless_asked_for(url: str, asked: dict[str, Any]) -> None:
    message = post(url, "chat/completions", chat_body(**asked)).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": TEXT}


@pytest.mark.parametrize("stop", [["fox"], "fox", ["lazy", "b", "c", "d ", "q", "quick brown fox"], ["ick b", "zz"]])
def test_stop_strings_are_never_shown(client: openai.OpenAI, stop: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=USER, stop=stop)
    stops = [stop] if isinstance(stop, str) else stop
    first = min(TEXT.index(word) for word in stops if word in TEXT)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (TEXT[:first], "stop")


def test_log_probabilities_one_by_one(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=USER, logprobs=True, top_logprobs=2, max_tokens=3
    ).choices[0]
    assert answer.logprobs is not None
    assert answer.logprobs.content is not None
    told = answer.logprobs.content
    assert [entry.token for entry in told] == ["T", "h", "e"]
    assert [entry.logprob for entry in told] == [0.0, -0.125, -0.25]
    assert [entry.bytes for entry in told] == [[84], [104], [101]]
    assert [[option.token for option in entry.top_logprobs] for entry in told] == [["T", "U"], ["h", "i"], ["e", "f"]]


def test_log_probabilities_in_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL, messages=USER, logprobs=True, max_tokens=4, stream=True, extra_body={"dsv4_script": "aé!"}
    ) as chunks:
        told = []
        for chunk in chunks:
            logprobs = chunk.choices[0].logprobs
            told += (logprobs.content or []) if logprobs else []
    assert [entry.bytes for entry in told] == [[97], [0xC3], [0xA9], [33]]
    assert [entry.token for entry in told] == ["a", "\\xc3", "\\xa9", "!"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_character_cut_off_by_the_limit_is_one_replacement_with_its_log_probabilities(url: str, stream: bool) -> None:
    body = chat_body(logprobs=True, max_tokens=4, dsv4_script="a😀", stream=stream)
    answer = post(url, "chat/completions", body)
    if stream:
        choices = [event["choices"][0] for event in events(answer)]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        told = [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]
        finish = choices[-1]["finish_reason"]
    else:
        choice = answer.json()["choices"][0]
        text, told, finish = choice["message"]["content"], choice["logprobs"]["content"], choice["finish_reason"]
        assert answer.json()["usage"]["completion_tokens"] == 4
    assert (text, finish) == ("a\ufffd", "length")
    assert [entry["bytes"] for entry in told] == [[97], [0xF0], [0x9F], [0x98]]


def test_no_chunk_holds_half_a_character(url: str) -> None:
    body = chat_body(dsv4_script="é€😀", stream=True)
    contents = [event["choices"][0]["delta"].get("content") for event in events(post(url, "chat/completions", body))]
    assert contents == ["", "é", "€", "😀", ""]


def test_ids_that_pad_the_vocabulary_say_nothing(url: str) -> None:
    body = chat_body(dsv4_script=[*byte_ids(b"a"), 280, *byte_ids(b"b")], logprobs=True, top_logprobs=3)
    assert post(url, "chat/completions", body).json()["choices"][0]["message"]["content"] == "ab"


def test_content_parts_and_developer_messages(url: str, engine: ScriptedEngine) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert post(url, "chat/completions", {"model": MODEL, "messages": messages}).status_code == 200
    as_text = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one\n\ntwo"}]
    parted = engine.seen[-1][1]
    assert post(url, "chat/completions", {"model": MODEL, "messages": as_text}).status_code == 200
    assert parted == engine.seen[-1][1]
