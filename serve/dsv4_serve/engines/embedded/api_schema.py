"""The bodies of `/v1/chat/completions` and `/v1/completions`: names, types and ranges.

The one authority on what a request may look like; it imports no torch, so the launcher validates with it too.
It says what is well formed. What the embedded engine cannot do is refused in `unsupported.py`, since another
engine behind the same API may be able to. The description of a field is what an error message says would be
accepted.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from .api_messages import Body, Message, NamedToolChoice, Tool

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000
MAX_ALTERNATIVES = 20
MAX_SEED = 2**63 - 1

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Thinking(Body):
    type: Literal["enabled", "disabled"]


class ChatTemplateKwargs(Body):
    thinking: bool | None = None
    enable_thinking: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]


class StreamOptions(Body):
    include_usage: bool | None = None


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TokenId = Annotated[int, Field(ge=0)]


class GenerationBody(Body):
    """What both routes share."""

    model: Annotated[str | None, Field(description="the name of a served model")] = None
    max_tokens: Annotated[int | None, Field(ge=1, description="an integer >= 1")] = None
    temperature: Annotated[float | None, Field(ge=0, le=2, description="a number from 0 to 2")] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, description="a number above 0, up to 1")] = None
    top_k: Annotated[int | None, Field(ge=-1, description="an integer >= 1, or 0 or -1 for all")] = None
    seed: Annotated[int | None, Field(ge=0, le=MAX_SEED, description="an integer from 0 to 2**63 - 1")] = None
    n: Annotated[int | None, Field(ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")] = None
    stop: Annotated[
        StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None,
        Field(description=f"a string of 1 to {MAX_STOP_CHARACTERS} characters, or a list of up to {MAX_STOP_STRINGS}"),
    ] = None
    stop_token_ids: Annotated[list[TokenId] | None, Field(description="a list of token ids")] = None
    ignore_eos: Annotated[bool | None, Field(description="true or false")] = None
    skip_special_tokens: Annotated[bool | None, Field(description="true or false")] = None
    stream: Annotated[bool | None, Field(description="true or false")] = None
    stream_options: Annotated[StreamOptions | None, Field(description='an object such as {"include_usage": true}')] = (
        None
    )
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2, description="a number from -2 to 2")] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2, description="a number from -2 to 2")] = None
    logit_bias: Annotated[dict[str, float] | None, Field(description="an object that maps token ids to numbers")] = None
    user: Annotated[str | None, Field(description="a string")] = None
    dsv4_script: Annotated[
        str | list[TokenId] | None,
        Field(description="a text, special tokens included, or a list of token ids (for tests only)"),
    ] = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise conflict("stream_options", 'is only allowed together with "stream": true')
        return self

    @property
    def stop_strings(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, description="a list of at least one message")]
    max_completion_tokens: Annotated[int | None, Field(ge=1, description="an integer >= 1")] = None
    logprobs: Annotated[bool | None, Field(description="true or false")] = None
    top_logprobs: Annotated[
        int | None, Field(ge=0, le=MAX_ALTERNATIVES, description=f"an integer from 0 to {MAX_ALTERNATIVES}")
    ] = None
    tools: Annotated[list[Tool] | None, Field(description="a list of function tools")] = None
    tool_choice: Annotated[
        Literal["auto", "none", "required"] | NamedToolChoice | None,
        Field(description='"auto", "none", "required" or {"type": "function", "function": {"name": ...}}'),
    ] = None
    parallel_tool_calls: Annotated[bool | None, Field(description="true or false")] = None
    thinking: Annotated[Thinking | None, Field(description='{"type": "enabled"} or {"type": "disabled"}')] = None
    reasoning_effort: Annotated[
        ReasoningEffort | None,
        Field(description='"none", "minimal", "low", "medium", "high", "xhigh" or "max"'),
    ] = None
    chat_template_kwargs: Annotated[
        ChatTemplateKwargs | None, Field(description='an object such as {"thinking": true}')
    ] = None
    response_format: Annotated[ResponseFormat | None, Field(description='an object such as {"type": "text"}')] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise conflict("top_logprobs", 'is only allowed together with "logprobs": true')
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise conflict("max_tokens", "differs from max_completion_tokens; give one of them")
        if isinstance(self.tool_choice, NamedToolChoice) or self.tool_choice == "required":
            self._require_tool(self.tool_choice)
        if len(set(self.thinking_wishes.values())) > 1:
            raise conflict("thinking", f"is contradicted: {self.thinking_wishes}")
        return self

    def _require_tool(self, choice: NamedToolChoice | str) -> None:
        names = sorted(tool.function.name for tool in self.tools or ())
        if not names:
            raise conflict("tool_choice", "needs at least one entry in tools")
        if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
            raise conflict("tool_choice", f"names a function that is not in tools; accepted is one of {names}")

    @property
    def thinking_wishes(self) -> dict[str, bool]:
        """Every field that switches thinking on or off, with what it says."""
        wishes: dict[str, bool] = {}
        if self.thinking is not None:
            wishes["thinking"] = self.thinking.type == "enabled"
        if self.reasoning_effort is not None:
            wishes["reasoning_effort"] = self.reasoning_effort != "none"
        kwargs = self.chat_template_kwargs or ChatTemplateKwargs()
        for name, value in (("thinking", kwargs.thinking), ("enable_thinking", kwargs.enable_thinking)):
            if value is not None:
                wishes[f"chat_template_kwargs.{name}"] = value
        return wishes

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(GenerationBody):
    """`POST /v1/completions`. Token id lists are taken as they are; strings never yield special tokens."""

    prompt: Annotated[
        str | list[str] | list[TokenId] | list[list[TokenId]],
        Field(description="a string, a list of strings, a list of token ids, or a list of such lists"),
    ]
    logprobs: Annotated[
        int | None, Field(ge=0, le=MAX_ALTERNATIVES, description=f"an integer from 0 to {MAX_ALTERNATIVES}")
    ] = None
    best_of: Annotated[int | None, Field(ge=1, description="an integer >= 1")] = None
    echo: Annotated[bool | None, Field(description="true or false")] = None
    suffix: Annotated[str | None, Field(description="a string")] = None

    @model_validator(mode="after")
    def _some_prompt(self) -> Self:
        if self.prompt == [] or (isinstance(self.prompt, list) and [] in self.prompt):
            raise conflict("prompt", "holds an empty list; accepted is at least one prompt of at least one token id")
        return self

    @property
    def prompts(self) -> int:
        """How many there are: a string or a list of token ids is one."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return 1
        return len(self.prompt)

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens


def conflict(param: str, problem: str) -> PydanticCustomError:
    """A well-typed field that does not go with the rest of the request."""
    return PydanticCustomError("conflict", "{param} {problem}", {"param": param, "problem": problem})
