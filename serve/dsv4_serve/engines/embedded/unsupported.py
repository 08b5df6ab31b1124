"""What a request may ask for and this engine cannot do: refused by name, never ignored."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator

from .api_messages import Body, OtherPart
from .api_schema import ChatRequest, CompletionRequest
from .http_errors import ApiError, cut, invalid, shown

NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_json": (),
    "guided_regex": (),
    "include_reasoning": (True,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "no_stop_trim": (False,),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "presence_penalty": (0,),
    "priority": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "return_hidden_states": (False,),
    "return_token_ids": (False,),
    "separate_reasoning": (True,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_reasoning": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters of OpenAI, vLLM or SGLang that have no effect at these values, and are refused at any other."""

HINTS = frozenset({"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"})
"""Parameters that never change an answer."""

NESTED_HARMLESS = frozenset({("ToolCall", "index"), ("ToolMessage", "name"), ("StreamOptions", "include_obfuscation")})
"""What clients send along, (model, name): a tool's answer is matched by its id, padding is optional."""

EMPTY: tuple[object, ...] = (None, "", False, [], {})


def refuse_unsupported(request: ChatRequest | CompletionRequest, *, allow_script: bool) -> None:
    """Raise `ApiError` (400) for the first thing in `request` that the engine would have to ignore."""
    if request.dsv4_script is not None and not allow_script:
        raise invalid("dsv4_script", "dsv4_script needs an engine that was started with --allow-token-script")
    extra = request.model_extra or {}
    known = type(request).model_fields
    for name, value in ({field: getattr(request, field) for field in known} | extra).items():
        _refuse_parameter(name, value, known, is_extra=name in extra)
    for path, body in _nested(request, ""):
        _refuse_nested(path, body)
    if isinstance(request, ChatRequest):
        _refuse_chat(request)
    elif request.best_of not in (None, request.choices):
        raise _unsupported("best_of", request.best_of, f"the value of n, {request.choices}")


def _refuse_parameter(name: str, value: object, known: Iterable[str], *, is_extra: bool) -> None:
    if value is None or name in HINTS:
        return
    if name in NEUTRAL:
        if value not in NEUTRAL[name]:
            accepted = [json.dumps(neutral) for neutral in NEUTRAL[name]]
            raise _unsupported(name, value, " or ".join(accepted) or "to leave it out")
    elif is_extra:
        near = difflib.get_close_matches(name, [*known, *NEUTRAL, *HINTS], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise invalid(cut(name), f"{cut(name)} is not a parameter of this route{hint}", "unknown_parameter")


def _refuse_chat(request: ChatRequest) -> None:
    if request.response_format is not None and request.response_format.type != "text":
        raise _unsupported("response_format.type", request.response_format.type, '"text"')
    for index, tool in enumerate(request.tools or ()):
        if tool.function.strict:
            raise _unsupported(f"tools[{index}].function.strict", True, "false")


def _nested(value: object, path: str) -> Iterator[tuple[str, Body]]:
    """Every object inside `value` that the schema describes, with its path."""
    if isinstance(value, Body):
        if path:
            yield path, value
        for name in type(value).model_fields:
            yield from _nested(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _nested(item, f"{path}[{index}]")


def _refuse_nested(path: str, body: Body) -> None:
    if isinstance(body, OtherPart):
        raise _unsupported(f"{path}.type", body.type, '"text"; this model reads text only')
    for name, value in (body.model_extra or {}).items():
        if value in EMPTY or (type(body).__name__, name) in NESTED_HARMLESS:
            continue
        full = f"{path}.{cut(name)}"
        raise invalid(full, f"{full} is not supported by this engine", "unsupported_parameter")


def _unsupported(name: str, value: object, accepted: str) -> ApiError:
    message = f"{name}={shown(value)} is not supported by this engine: accepted is {accepted}"
    return invalid(name, message, "unsupported_parameter")
