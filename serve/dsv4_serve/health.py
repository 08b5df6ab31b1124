"""/livez, /readyz, /startupz: three questions, three answers."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from dsv4_serve.front import Front


def health_routes(front: Front) -> APIRouter:
    router = APIRouter()

    @router.get("/livez")
    async def livez() -> JSONResponse:
        """Is this process able to answer? Never asks the engine: a slow engine must not be killed for it."""
        return JSONResponse({"alive": True})

    @router.get("/readyz")
    async def readyz() -> JSONResponse:
        """Would a request be served now? After a real generation, while the engine lives, before a drain."""
        lifecycle = front.lifecycle
        body = {"ready": lifecycle.ready, "state": lifecycle.state, "reason": lifecycle.reason or None}
        return JSONResponse(body, 200 if lifecycle.ready else 503)

    @router.get("/startupz")
    async def startupz() -> JSONResponse:
        """Has it ever become ready, and how long did each phase take?"""
        body = front.lifecycle.describe()
        return JSONResponse(body, 200 if body["started"] else 503)

    return router
