"""The public and the admin application."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from dsv4_serve.admin import admin_routes
from dsv4_serve.front import Front
from dsv4_serve.gate import KeyGate
from dsv4_serve.health import health_routes
from dsv4_serve.nodes import Nodes
from dsv4_serve.openai_errors import ApiError, not_ready, unknown_model, unknown_route, wrong_method
from dsv4_serve.openapi import openapi
from dsv4_serve.pages import page_routes
from dsv4_serve.proxy import Proxy
from dsv4_serve.router_routes import router_routes
from dsv4_serve.validate import ROUTES
from dsv4_serve.worker_node import WorkerNode


def public_app(front: Front) -> ASGIApp:
    """/v1/*, health and the status page; /metrics and /manifest too while the port is bound to loopback."""
    app = _bare_app("/v1/models", *ROUTES)
    nodes = Nodes.of(front.settings.profile.toggles())
    api = WorkerNode(nodes) if nodes.worker else Proxy(front)
    app.router.routes.extend(Route(path, api, methods=["POST"]) for path in ROUTES)
    _add_models(app, front)
    app.include_router(health_routes(front))
    app.include_router(router_routes(front))
    app.include_router(page_routes(front))
    _add_openapi(app, front)
    if front.settings.loopback:
        app.include_router(admin_routes(front))
    return KeyGate(app, front.settings.api_keys)


def admin_app(front: Front) -> ASGIApp:
    """/metrics, /manifest and health. No keys: this port is for the inner network."""
    app = _bare_app("/metrics", "/manifest", "/livez", "/readyz", "/startupz")
    app.include_router(admin_routes(front))
    app.include_router(health_routes(front))
    return app


def _bare_app(*offered: str) -> FastAPI:
    """`offered` are the routes that the answer to an unknown one names."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.offered = offered
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(Exception, _defect)
    return app


def _add_models(app: FastAPI, front: Front) -> None:
    created = int(time.time())

    def card() -> dict[str, Any]:
        if not front.lifecycle.takes_requests:
            raise not_ready(front.lifecycle.state, front.lifecycle.reason)
        model = front.settings.profile.model
        fixed = {"object": "model", "created": created, "owned_by": "dsv4-rocm"}
        return {"id": model.name, **fixed, "max_model_len": model.context_length}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name != front.model:
            raise unknown_model(name, front.model)
        return card()


def _add_openapi(app: FastAPI, front: Front) -> None:
    document = openapi(front)

    @app.get("/openapi.json")
    async def openapi_json() -> JSONResponse:
        return JSONResponse(document)


async def _api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def _defect(request: Request, error: Exception) -> JSONResponse:
    # The log has the traceback, which uvicorn writes; the client has no use for it.
    refusal = ApiError(500, "Internal error; the server's log says more.", "server_error", code="internal_error")
    return JSONResponse(refusal.body(), refusal.status)


async def _routing_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    if error.status_code == 404:
        refusal = unknown_route(method, path, request.app.state.offered)
    elif error.status_code == 405:
        refusal = wrong_method(method, path, (error.headers or {}).get("Allow", "another method"))
    else:
        refusal = ApiError(error.status_code, error.detail)
    return JSONResponse(refusal.body(), refusal.status, headers=refusal.headers)
