"""The HTTP application of the embedded engine: routes, error shape, start and stop of the engine."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from .api_schema import ChatRequest, CompletionRequest
from .chat import ChatAnswer
from .chat_format import ChatFormat
from .completions import CompletionAnswer
from .event_stream import DisconnectError, EventStream, unless_gone
from .generation import Served
from .http_errors import ApiError, from_engine, parse
from .request import EngineError
from .request_log import CLIENT_GONE_STATUS, RECORD_KEY, RequestLog, RequestRecord
from .unsupported import refuse_unsupported

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Answer(Protocol):
    """A prepared request of either route."""

    def events(self) -> AsyncGenerator[bytes, None]: ...
    async def whole(self) -> dict[str, object]: ...


def build_app(served: Served) -> Starlette:
    """The application; it starts the engine when it starts and stops it when it ends."""
    chat_format = ChatFormat(served.tokenizer, served.model_name, served.chat_version)
    routes = Routes(served, chat_format)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        served.engine.start()
        yield
        await served.engine.stop()

    return Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat_completions, methods=["POST"]),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/health", routes.health),
            Route("/server_info", routes.server_info),
            Route("/metrics", routes.metrics),
        ],
        middleware=[Middleware(RequestLog)],
        exception_handlers=_error_handlers(),
        lifespan=lifespan,
    )


class Routes:
    """One method a route."""

    def __init__(self, served: Served, chat_format: ChatFormat) -> None:
        self._served = served
        self._chat_format = chat_format
        self._started = int(time.time())

    async def chat_completions(self, request: Request) -> Response:
        body = parse(ChatRequest, await request.body())
        self._check(body)
        record = record_of(request)
        answer = ChatAnswer.prepare(self._served, self._chat_format, body, record)
        return await _respond(request, answer, record, stream=bool(body.stream))

    async def completions(self, request: Request) -> Response:
        body = parse(CompletionRequest, await request.body())
        self._check(body)
        record = record_of(request)
        answer = CompletionAnswer.prepare(self._served, body, record)
        return await _respond(request, answer, record, stream=bool(body.stream))

    def _check(self, body: ChatRequest | CompletionRequest) -> None:
        self._served.check_model(body.model)
        refuse_unsupported(body, allow_script=self._served.allow_script)

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._served.check_model(request.path_params["name"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, object]:
        return {
            "id": self._served.model_name,
            "object": "model",
            "created": self._started,
            "owned_by": "dsv4-rocm",
            "max_model_len": self._served.context_length,
        }

    async def health(self, _: Request) -> Response:
        reason = self._served.engine.dead()
        if reason is None:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "dead", "reason": reason}, status_code=503)

    async def server_info(self, _: Request) -> Response:
        return JSONResponse(self._served.engine.server_info())

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(self._served.engine.metrics_text(), media_type=PROMETHEUS_TEXT)


def record_of(request: Request) -> RequestRecord:
    record: RequestRecord = request.scope[RECORD_KEY]
    return record


async def _respond(request: Request, answer: Answer, record: RequestRecord, *, stream: bool) -> Response:
    if not stream:
        return JSONResponse(await unless_gone(request.receive, answer.whole()))
    events = answer.events()
    # A refusal by the engine shows at the first token; only then is the status known.
    first = await unless_gone(request.receive, anext(events))
    return EventStream(first, events, record)


Handler = Callable[[Request, Exception], Awaitable[Response]]


def _error_handlers() -> Mapping[type[Exception], Handler]:
    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        record_of(request).error = error.code
        return JSONResponse(error.body(), status_code=error.status, headers=error.headers)

    async def engine_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, EngineError)
        return await api_error(request, from_engine(error))

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        return await api_error(request, ApiError(error.status_code, message, headers=dict(error.headers or {})))

    async def client_gone(request: Request, _: Exception) -> Response:
        record_of(request).finish.append("disconnect")
        return Response(status_code=CLIENT_GONE_STATUS)

    async def unexpected(request: Request, error: Exception) -> Response:
        message = "The server failed on this request; its log says why."
        return await api_error(request, ApiError(500, message, type="server_error", code=type(error).__name__))

    return {
        ApiError: api_error,
        EngineError: engine_error,
        HTTPException: http_error,
        DisconnectError: client_gone,
        ClientDisconnect: client_gone,
        Exception: unexpected,
    }
