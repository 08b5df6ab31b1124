"""What a machine beyond the first answers to API requests: that another one does."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from dsv4_serve.nodes import Nodes
from dsv4_serve.openai_errors import ApiError, send_error


class WorkerNode:
    """The ASGI app behind the API's routes on a machine of rank 1 or above."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = (self.nodes.address or "").rpartition(":")[0]
        message = (
            f"This is machine {self.nodes.rank} of {self.nodes.count}, which computes for machine 0; "
            f"machine 0 ({host}) answers the API."
        )
        await send_error(send, ApiError(421, message, code="worker_node"))
