"""The status page's files and the JSON that it polls."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from dsv4_serve.front import Front
from dsv4_serve.status import status

STATIC = Path(__file__).parent / "static"
FILES = {
    "/": ("status.html", "text/html; charset=utf-8"),
    "/status.css": ("status.css", "text/css; charset=utf-8"),
    "/status.js": ("status.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
}
# Nothing from elsewhere is loaded, and the page says so to the browser.
HEADERS = {"content-security-policy": "default-src 'self'; img-src 'self' data:", "cache-control": "no-cache"}


def page_routes(front: Front) -> APIRouter:
    router = APIRouter()
    for path, (name, media_type) in FILES.items():
        router.add_api_route(path, _file(name, media_type), methods=["GET"])

    @router.get("/status.json")
    async def status_json() -> JSONResponse:
        return JSONResponse(await status(front), headers={"cache-control": "no-store"})

    return router


def _file(name: str, media_type: str) -> Callable[[], Coroutine[None, None, Response]]:
    content = (STATIC / name).read_bytes()

    async def serve() -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return serve
