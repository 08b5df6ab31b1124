"""Errors as the OpenAI API words them: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from .request import EngineDead, EngineError, PromptTooLong, QueueFull

RETRY_AFTER_SECONDS = 1
SHOWN_VALUE_CHARACTERS = 80

RequestModel = TypeVar("RequestModel", bound=BaseModel)


@dataclass(eq=False)
class ApiError(Exception):
    """An answer other than 200. `param` names the field at fault, `code` is for programs."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def invalid(param: str | None, message: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def context_length_exceeded(prompt: int, wanted: int, limit: int, param: str) -> ApiError:
    return ApiError(
        400,
        f"This model's context is {limit} tokens, but {prompt + wanted} were asked for: {prompt} in the "
        f"prompt and {wanted} to generate. Shorten the prompt or lower max_tokens.",
        param=param,
        code="context_length_exceeded",
    )


def unknown_model(name: str, served: str) -> ApiError:
    message = f"The model {name!r} does not exist here; {served!r} is served."
    return ApiError(404, message, param="model", code="model_not_found")


def from_engine(error: EngineError) -> ApiError:
    """What the client sees of an engine's refusal."""
    retry = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), type="rate_limit_error", code="queue_full", headers=retry)
    if isinstance(error, PromptTooLong):
        return ApiError(400, str(error), code="context_length_exceeded")
    code = "engine_dead" if isinstance(error, EngineDead) else "engine_error"
    return ApiError(503, str(error), type="service_unavailable", code=code, headers=retry)


def parse(model: type[RequestModel], body: bytes) -> RequestModel:
    """The request in `body`, or an `ApiError` (400): the field at fault, its value and what is accepted."""
    try:
        data = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(None, f"The body is not valid JSON: {error}", "invalid_json") from None
    if not isinstance(data, dict):
        raise invalid(None, f"The body is {shown(data)}; accepted is a JSON object.", "invalid_type")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _from_validation(model, data, error) from None


def _from_validation(model: type[BaseModel], data: dict[str, Any], failure: ValidationError) -> ApiError:
    errors = failure.errors(include_url=False)
    if errors[0]["type"] == "conflict":
        return invalid(str(errors[0]["ctx"]["param"]), errors[0]["msg"])
    # One wrong value fails once for every branch of a union: the branch that got furthest knows best.
    same_field = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    located = [(*_locate(data, error), error) for error in same_field]
    path, value, error = max(located, key=lambda item: item[0].count("[") + item[0].count("."))
    if error["type"] in ("missing", "union_tag_not_found"):
        return invalid(path, f"{path} is missing", "missing_required_parameter")
    complaints = dict.fromkeys(other["msg"] for at, _, other in located if at == path)
    return invalid(
        path,
        f"{path}={shown(value)}: {_accepted(model, path, error) or ' or '.join(complaints)}",
        "invalid_type" if error["type"].endswith("_type") else "invalid_value",
    )


def _locate(data: dict[str, Any], error: ErrorDetails) -> tuple[str, Any]:
    """The field's path as the client wrote it; pydantic's own path also names the union branches it tried."""
    value: Any = data
    path = ""
    for step in error["loc"]:
        if isinstance(value, list) and isinstance(step, int) and step < len(value):
            value, path = value[step], f"{path}[{step}]"
        elif isinstance(value, dict) and step in value:
            value, path = value[step], f"{path}.{step}"
    if error["type"] == "missing":
        path = f"{path}.{error['loc'][-1]}"
    if error["type"].startswith("union_tag"):
        tag = str(error["ctx"]["discriminator"]).strip("'")
        value, path = value.get(tag), f"{path}.{tag}"
    return path.removeprefix("."), value


def _accepted(model: type[BaseModel], path: str, error: ErrorDetails) -> str | None:
    """What the schema says would be accepted; None where pydantic's own words are the better ones."""
    if error["type"] == "union_tag_invalid":
        return f"accepted is one of {error['ctx']['expected_tags']}"
    top = model.model_fields.get(path.partition("[")[0])
    if top is None or "." in path or not top.description or error["type"] == "model_attributes_type":
        return None
    return f"accepted is {top.description}"


def cut(name: str) -> str:
    """A name of the client's choosing, so that it cannot fill an error or a log."""
    return name if len(name) <= SHOWN_VALUE_CHARACTERS else f"{name[:SHOWN_VALUE_CHARACTERS]}..."


def shown(value: object) -> str:
    """A value of a request as JSON, cut so that an error stays readable."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_VALUE_CHARACTERS else f"{text[:SHOWN_VALUE_CHARACTERS]}..."
