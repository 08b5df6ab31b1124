"""What a router in front of several servers asks each of them: sglang-router and its kin probe these before they send.

`/health` is how such a router tells an HTTP server from a gRPC one, so it must be there even where the router is told
to watch /readyz; without the name of the model it would list ours as "unknown".
"""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from dsv4_serve.front import Front


def router_routes(front: Front) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> JSONResponse:
        """200 while requests are taken: a router that leaves a draining server late must not see an error."""
        lifecycle = front.lifecycle
        return JSONResponse({"status": lifecycle.state}, 200 if lifecycle.takes_requests else 503)

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> dict[str, object]:
        return {"model_path": front.model, "is_generation": True}

    @router.get("/server_info")
    @router.get("/get_server_info")
    async def server_info() -> dict[str, object]:
        """The name alone: the engine's own answer tells paths and flags, which are not for the public port."""
        return {"model_path": front.model, "served_model_name": front.model}

    return router
