"""What is well formed, what is refused, and in which words."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from dsv4_serve.engines.embedded.api_schema import ChatRequest, CompletionRequest
from dsv4_serve.engines.embedded.http_errors import ApiError, parse
from dsv4_serve.engines.embedded.unsupported import refuse_unsupported

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, json.dumps({"messages": [USER], **fields}).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse(CompletionRequest, json.dumps({"prompt": "x", **fields}).encode())


def refusal(make: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as failure:
        refuse_unsupported(make(**fields), allow_script=False)
    assert failure.value.status == 400
    assert failure.value.type == "invalid_request_error"
    return failure.value


WRONG = [
    ("max_tokens", 0, "max_tokens=0: accepted is an integer >= 1"),
    ("max_tokens", "5", 'max_tokens="5": accepted is an integer >= 1'),
    ("max_tokens", True, "max_tokens=true: accepted is an integer >= 1"),
    ("max_tokens", 1.5, "max_tokens=1.5: accepted is an integer >= 1"),
    ("temperature", "hot", 'temperature="hot": accepted is a number from 0 to 2'),
    ("temperature", 2.1, "temperature=2.1: accepted is a number from 0 to 2"),
    ("top_p", 0, "top_p=0: accepted is a number above 0, up to 1"),
    ("top_k", -2, "top_k=-2: accepted is an integer >= 1, or 0 or -1 for all"),
    ("seed", -1, "seed=-1: accepted is an integer from 0 to 2**63 - 1"),
    ("seed", 2**63, f"seed={2**63}: accepted is an integer from 0 to 2**63 - 1"),
    ("n", 0, "n=0: accepted is an integer from 1 to 128"),
    ("n", 129, "n=129: accepted is an integer from 1 to 128"),
    ("stop", "", 'stop="": accepted is a string of 1 to 1000 characters, or a list of up to 16'),
    ("stop", 3, "stop=3: accepted is a string of 1 to 1000 characters, or a list of up to 16"),
    ("stream", "yes", 'stream="yes": accepted is true or false'),
    ("stream_options", 1, 'stream_options=1: accepted is an object such as {"include_usage": true}'),
    ("stop_token_ids", [-1], "stop_token_ids[0]=-1: accepted is a list of token ids"),
    ("ignore_eos", 1, "ignore_eos=1: accepted is true or false"),
    ("logit_bias", [], "logit_bias=[]: accepted is an object that maps token ids to numbers"),
    ("frequency_penalty", 3, "frequency_penalty=3: accepted is a number from -2 to 2"),
    ("presence_penalty", "x", 'presence_penalty="x": accepted is a number from -2 to 2'),
    ("model", 5, "model=5: accepted is the name of a served model"),
    ("user", 5, "user=5: accepted is a string"),
]


@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_field_is_named_with_value_and_what_is_accepted(
    make: Any, name: str, value: object, message: str
) -> None:
    error = refusal(make, **{name: value})
    assert (error.message, error.param.partition("[")[0] if error.param else None) == (message, name)
    assert error.code in ("invalid_type", "invalid_value")


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "messages=[]: accepted is a list of at least one message"),
        ({"messages": "hi"}, "messages", 'messages="hi": accepted is a list of at least one message'),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "messages[0].content is missing"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "messages[0].role is missing"),
        (
            {"messages": [USER, {"role": "bob", "content": "hi"}]},
            "messages[1].role",
            "messages[1].role=\"bob\": accepted is one of 'system', 'developer', 'latest_reminder', 'user', "
            "'assistant', 'tool'",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages[0].content",
            "messages[0].content=5: Input should be a valid string or Input should be a valid list",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "messages[0].content[0].text is missing",
        ),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages[0].tool_call_id",
            "messages[0].tool_call_id is missing",
        ),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens=0: accepted is an integer >= 1"),
        (
            {"max_tokens": 3, "max_completion_tokens": 4},
            "max_tokens",
            "max_tokens differs from max_completion_tokens; give one of them",
        ),
        ({"logprobs": 3}, "logprobs", "logprobs=3: accepted is true or false"),
        (
            {"logprobs": True, "top_logprobs": 21},
            "top_logprobs",
            "top_logprobs=21: accepted is an integer from 0 to 20",
        ),
        ({"top_logprobs": 2}, "top_logprobs", 'top_logprobs is only allowed together with "logprobs": true'),
        ({"stream_options": {}}, "stream_options", 'stream_options is only allowed together with "stream": true'),
        (
            {"tool_choice": "some"},
            "tool_choice",
            'tool_choice="some": accepted is "auto", "none", "required" or '
            '{"type": "function", "function": {"name": ...}}',
        ),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice needs at least one entry in tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "tool_choice names a function that is not in tools; accepted is one of ['f']",
        ),
        ({"tools": [{"type": "web"}]}, "tools[0].type", "tools[0].type=\"web\": Input should be 'function'"),
        (
            {"thinking": {"type": "on"}},
            "thinking.type",
            "thinking.type=\"on\": Input should be 'enabled' or 'disabled'",
        ),
        (
            {"thinking": {"type": "disabled"}, "reasoning_effort": "high"},
            "thinking",
            "thinking is contradicted: {'thinking': False, 'reasoning_effort': True}",
        ),
    ],
)
def test_chat_refusals(fields: dict[str, Any], param: str, message: str) -> None:
    error = refusal(chat, **fields)
    assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize("prompt", [None, 5, [1, "x"], [[1], "x"], [-1], {"text": "x"}])
def test_a_prompt_of_another_shape(prompt: object) -> None:
    error = refusal(completion, prompt=prompt)
    assert error.message.endswith(
        "accepted is a string, a list of strings, a list of token ids, or a list of such lists"
    )


@pytest.mark.parametrize("prompt", [[], [[]], [[1], []]])
def test_an_empty_prompt_list(prompt: object) -> None:
    assert refusal(completion, prompt=prompt).param == "prompt"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is not valid JSON: "),
        (b"{", "The body is not valid JSON: "),
        (b'{"prompt": NaN}', "The body is not valid JSON: "),
        (b'{"prompt": "\\ud800"}', "The body is not valid JSON: "),
        (b"\xff", "The body is not valid JSON: "),
        (b"[1]", "The body is [1]; accepted is a JSON object."),
        (b"{}", "prompt is missing"),
    ],
)
def test_a_body_that_is_no_request(body: bytes, message: str) -> None:
    with pytest.raises(ApiError) as failure:
        parse(CompletionRequest, body)
    assert failure.value.message.startswith(message)


UNSUPPORTED = [
    ("frequency_penalty", 0.5, 0),
    ("presence_penalty", -1.5, 0.0),
    ("logit_bias", {"5": 1.0}, {}),
    ("min_p", 0.1, 0),
    ("repetition_penalty", 1.1, 1.0),
    ("min_tokens", 4, 0),
    ("store", True, False),
    ("service_tier", "flex", "auto"),
    ("modalities", ["text", "audio"], ["text"]),
    ("audio", {"voice": "x"}, None),
    ("functions", [{}], []),
    ("prediction", {"type": "content"}, None),
    ("web_search_options", {}, None),
    ("guided_json", {}, None),
    ("structured_outputs", {"regex": "a"}, None),
]


@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize(("name", "refused", "neutral"), UNSUPPORTED)
def test_what_the_engine_cannot_do_is_refused_unless_it_changes_nothing(
    make: Any, name: str, refused: object, neutral: object
) -> None:
    error = refusal(make, **{name: refused})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert f"{name}={json.dumps(refused)} is not supported by this engine: accepted is " in error.message
    refuse_unsupported(make(**{name: neutral}), allow_script=False)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"chat_template_kwargs": {"think": True}}, "chat_template_kwargs.think"),
        ({"messages": [{**USER, "name": "bob"}]}, "messages[0].name"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[1].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
    ],
)
def test_chat_features_that_are_not_there(fields: dict[str, Any], param: str) -> None:
    error = refusal(chat, **fields)
    assert (error.param, error.code) == (param, "unsupported_parameter")


@pytest.mark.parametrize(("name", "value"), [("echo", True), ("suffix", "x"), ("best_of", 2)])
def test_completion_features_that_are_not_there(name: str, value: object) -> None:
    assert refusal(completion, **{name: value}).param == name


def test_an_unknown_field_is_an_error_with_the_nearest_name() -> None:
    error = refusal(chat, max_token=5)
    assert (error.code, error.message) == (
        "unknown_parameter",
        "max_token is not a parameter of this route; did you mean max_tokens?",
    )


def test_the_token_script_needs_the_flag() -> None:
    request = chat(dsv4_script="x")
    refuse_unsupported(request, allow_script=True)
    assert "--allow-token-script" in refusal(chat, dsv4_script="x").message


def test_what_clients_send_along_is_fine() -> None:
    assistant = {"role": "assistant", "content": None, "tool_calls": [{**CALL, "index": 0}]}
    empties: dict[str, Any] = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    answer = {"role": "tool", "tool_call_id": "c1", "name": "f", "content": [{"type": "text", "text": "ok"}]}
    request = chat(
        messages=[{"role": "developer", "content": "be brief"}, USER, {**assistant, **empties}, answer],
        tools=[TOOL],
        temperature=1,
        response_format={"type": "text"},
        user="me",
        metadata={"a": "b"},
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": True},
        reasoning_effort=None,
    )
    refuse_unsupported(request, allow_script=False)
    assert request.include_usage


def test_the_schema_needs_no_torch() -> None:
    program = (
        "import sys; import dsv4_serve.engines.embedded.api_schema, dsv4_serve.engines.embedded.http_errors; "
        "sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], check=False, env={"PYTHONPATH": ":".join(sys.path)}).returncode
        == 0
    )
