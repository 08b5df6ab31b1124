"""The parts of a chat request that have a shape of their own: messages, tools, and their pieces."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    """Types are not coerced ("5" is no integer); unknown names stay in `model_extra` for `unsupported.py`."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)


class TextPart(Body):
    type: Literal["text"]
    text: str


class OtherPart(Body):
    type: Literal["image_url", "input_audio", "video_url", "file", "refusal"]


ContentPart = Annotated[TextPart | OtherPart, Field(discriminator="type")]
Content = str | list[ContentPart]


class FunctionCall(Body):
    name: str
    arguments: str


class ToolCall(Body):
    id: str
    type: Literal["function"]
    function: FunctionCall


class SystemMessage(Body):
    role: Literal["system", "developer", "latest_reminder"]
    content: Content


class UserMessage(Body):
    role: Literal["user"]
    content: Content


class AssistantMessage(Body):
    """`prefix` on the last message asks to continue it, as in DeepSeek's API."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    prefix: bool | None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: Content
    tool_call_id: str


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionDefinition(Body):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Body):
    name: str


class NamedToolChoice(Body):
    type: Literal["function"]
    function: NamedFunction
