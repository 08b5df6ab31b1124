"""The front's own refusals, in OpenAI's shape, and how any refusal is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from starlette.types import Send

from dsv4_serve.engines.embedded.http_errors import ApiError, invalid, unknown_model

__all__ = ["ApiError", "invalid", "unknown_model"]

STATUSES = {
    400: "malformed, out of range, or more than the context holds",
    401: "no API key, or none of this server's",
    404: "no such model or route",
    405: "this route takes another method",
    408: "the request did not arrive in time",
    413: "the body is larger than the limit",
    421: "another of the machines that serve this model answers the API",
    429: "too many requests are under way",
    431: "the headers are larger than the limit",
    502: "the engine broke off",
    503: "not ready: starting, restarting, or shutting down",
    504: "the request reached a limit of time",
}
RETRY_SECONDS = {"starting": 2, "unhealthy": 2, "restarting": 5, "draining": 10, "dead": 10}


def bad_key(given: bool) -> ApiError:
    problem = "The API key is not valid." if given else "No API key: send Authorization: Bearer KEY."
    return ApiError(401, problem, "authentication_error", None, "invalid_api_key", {"WWW-Authenticate": "Bearer"})


def unknown_route(method: str, path: str, offered: Iterable[str]) -> ApiError:
    message = f"{method} {path}: no such route; there are {', '.join(offered)}."
    return ApiError(404, message, code="unknown_url")


def wrong_method(method: str, path: str, allowed: str) -> ApiError:
    message = f"{method} {path}: this route takes {allowed}."
    return ApiError(405, message, code="method_not_allowed", headers={"Allow": allowed})


def body_too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body exceeds {limit} bytes, the limit of this server.", code="request_too_large")


def too_many(limit: int) -> ApiError:
    message = f"{limit} requests are under way, the limit of this server; try again."
    return ApiError(429, message, "rate_limit_error", None, "too_many_requests", {"Retry-After": "1"})


def not_ready(state: str, reason: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_SECONDS.get(state, 2))}
    message = f"Not served now, the server is {state}: {reason}."
    return ApiError(503, message, "service_unavailable", None, "not_ready", headers)


def engine_lost(reason: str) -> ApiError:
    message = f"The engine broke off: {reason}"
    return ApiError(502, message, "service_unavailable", None, "engine_lost", {"Retry-After": "2"})


def took_too_long(what: str, seconds: float) -> ApiError:
    message = f"The request was ended: {what} {seconds:g} s, the limit of this server."
    return ApiError(504, message, "timeout_error", None, "request_timeout")


def prompt_too_long(tokens: int, limit: int, param: str) -> ApiError:
    message = f"The prompt has {tokens} tokens; accepted are up to {limit}, the limit of this server."
    return ApiError(400, message, param=param, code="prompt_too_long")


def not_http() -> ApiError:
    return ApiError(400, "This is not an HTTP/1.1 request.", code="invalid_http")


def head_too_large(limit: int) -> ApiError:
    return ApiError(
        431, f"The head of the request exceeds {limit} bytes, the limit of this server.", code="head_too_large"
    )


def head_too_slow(limit: float) -> ApiError:
    message = f"The head of the request did not arrive within {limit:g} s, the limit of this server."
    return ApiError(408, message, "timeout_error", None, "request_timeout")


def error_event(error: ApiError) -> bytes:
    """The refusal as the last event of a stream whose status has been sent already."""
    return b"data: " + json.dumps(error.body()).encode() + b"\n\n"


async def send_error(send: Send, error: ApiError, extra: Mapping[str, str] | None = None) -> None:
    payload = json.dumps(error.body()).encode()
    headers = {"content-type": "application/json", "content-length": str(len(payload))} | error.headers
    raw = [(name.lower().encode(), text.encode()) for name, text in (headers | dict(extra or {})).items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": payload})
