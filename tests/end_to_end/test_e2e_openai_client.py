"""The official client against `dsv4 serve` with the real engine: chat, stream, tools, log probabilities, errors."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from end_to_end.weather_tool import TOOLS
from serve.harness import MODEL, Launcher

ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
CALL = (
    "Let me look.\n\n<｜DSML｜tool_calls>\n"
    '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
"""What a trained model writes to call a tool; the tests force these tokens."""


def test_chat_and_its_stream_agree(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=24, temperature=0)
    with client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.completion_tokens == whole.usage.completion_tokens == 24
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens


def test_tool_call_whole_and_streamed(client: openai.OpenAI) -> None:
    script = {"dsv4_script": CALL}
    answer = client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS, extra_body=script)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})

    with client.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, stream=True, extra_body=script
    ) as stream:
        deltas = [c.choices[0].delta for c in stream if c.choices]
    parts = [p for d in deltas for p in d.tool_calls or []]
    assert "".join(p.function.name or "" for p in parts if p.function) == "get_weather"
    assert json.loads("".join(p.function.arguments or "" for p in parts if p.function)) == {"city": "Paris"}
    assert "".join(d.content or "" for d in deltas).strip() == "Let me look."


def test_the_answer_to_a_tool_call_is_taken(client: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    turns: Any = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS, max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 6
    for entry in content:
        assert len(entry.top_logprobs) == 3
        # Greedy: the chosen token is the likeliest one.
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)


def test_seeds_repeat_and_choices_differ(client: openai.OpenAI) -> None:
    def texts(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12, n=3, seed=seed)
        return [choice.message.content for choice in answer.choices]

    first = texts(5)
    assert first == texts(5)
    assert len(set(first)) == 3


def test_a_repeated_prompt_is_served_from_the_cache(served: Launcher, client: openai.OpenAI) -> None:
    text = "".join(chr(97 + (i * i) % 26) for i in range(700))

    def ask() -> Any:
        return client.completions.create(model=MODEL, prompt=text, max_tokens=3, temperature=0)

    cold, warm = ask(), ask()
    assert warm.usage.prompt_tokens == 701
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    assert warm.usage.prompt_tokens_details.cached_tokens == 512
    assert cold.choices[0].text == warm.choices[0].text
    metrics = served.get("/metrics").text
    assert 'dsv4_kv_bytes_per_token{region="index_payload"} 64.0' in metrics
    assert 'dsv4_kv_bytes_per_token{region="index_scale"} 4.0' in metrics
    assert 'dsv4_kv_capacity_tokens{region="main",tier="gpu"} 65536.0' in metrics


def test_context_length_exceeded_names_the_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model=MODEL, prompt="x" * 4090, max_tokens=100)
    assert error.value.code == "context_length_exceeded"
    for number in ("4091", "100", "4096"):
        assert number in error.value.message


def test_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="nobody", messages=ASK)
    assert error.value.code == "model_not_found"
