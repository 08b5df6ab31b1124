"""No read of the device while a graph is captured: any thread's call that waits for it would break the capture."""

from __future__ import annotations

import threading
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook

no_capture = threading.RLock()
"""Held by a capture from its beginning to its end, and by whoever reads the device."""


def _beginning(begin: Function) -> Function:
    def begun(graph: Any, *args: Any, **kwargs: Any) -> None:
        no_capture.acquire()
        try:
            begin(graph, *args, **kwargs)
        except BaseException:
            no_capture.release()
            raise

    return begun


def _ending(end: Function) -> Function:
    def ended(graph: Any) -> None:
        try:
            end(graph)
        finally:
            no_capture.release()

    return ended


GRAPHS = "torch.cuda.graphs"
HOOKS: tuple[Hook, ...] = (
    Hook(GRAPHS, "CUDAGraph.capture_begin", _beginning, "metrics wait while a graph is captured"),
    Hook(GRAPHS, "CUDAGraph.capture_end", _ending, "metrics wait while a graph is captured"),
)
