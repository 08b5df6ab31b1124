"""Refuses what no engine could serve, before the engine sees it."""

from __future__ import annotations

import time

from starlette.types import Receive, Scope

from dsv4_serve.engines.embedded.api_schema import ChatRequest, CompletionRequest
from dsv4_serve.engines.embedded.http_errors import parse
from dsv4_serve.exchange import Exchange
from dsv4_serve.openai_errors import body_too_large, invalid, unknown_model

Body = ChatRequest | CompletionRequest

ROUTES: dict[str, type[ChatRequest] | type[CompletionRequest]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
}


class ClientGoneError(Exception):
    """The client left before its request was complete."""


async def read_body(scope: Scope, receive: Receive, limit: int, exchange: Exchange) -> bytes:
    """The whole body; ApiError 413 above `limit` bytes, ClientGoneError when it never ends."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise body_too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        exchange.moved = time.perf_counter()
        size += len(parts[-1])
        if size > limit:
            raise body_too_large(limit)
        if not message.get("more_body"):
            return b"".join(parts)


def check_body(path: str, body: bytes, served: str, max_choices: int) -> Body:
    """The parsed request; ApiError 400 for a malformed one, 404 for a model that is not served here.

    A request makes no more than `max_choices` choices, over all its prompts.
    """
    request = parse(ROUTES[path], body)
    if request.model is None:
        raise invalid("model", f"model is missing; {served!r} is served", "missing_required_parameter")
    if request.model != served:
        raise unknown_model(request.model, served)
    prompts = request.prompts if isinstance(request, CompletionRequest) else 1
    if prompts * request.choices > max_choices:
        of = "n" if prompts == 1 else "prompt"
        told = f"{prompts} prompts with n={request.choices} are {prompts * request.choices} choices"
        raise invalid(of, f"{told}; accepted are up to {max_choices} in a request")
    return request
