"""/metrics and /manifest: on the admin port, and on the public one while only this machine reaches it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from dsv4_serve.front import Front
from dsv4_serve.manifest import manifest
from dsv4_serve.metrics.exposition import CONTENT_TYPE
from dsv4_serve.metrics.scrape import scrape


def admin_routes(front: Front) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(await scrape(front), headers={"content-type": CONTENT_TYPE})

    @router.get("/manifest")
    async def manifest_() -> JSONResponse:
        return JSONResponse(await manifest(front))

    return router
