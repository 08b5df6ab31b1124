"""SGLang's captured graphs, whose replays launch without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsv4_serve.engines import inside_work
from dsv4_serve.engines.hooks import Function, Hook
from dsv4_serve.engines.inside_work import Work, count_rows, in_python, total


def _capturing(capture_one: Function) -> Function:
    """A backend's `capture_one(shape_key, forward_fn, ...)` calls `forward_fn` to warm up, and last to capture."""

    def capture(backend: Any, shape_key: Any, forward_fn: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        last = Work()

        def watched() -> Any:
            nonlocal last
            before = in_python()
            output = forward_fn()
            last = in_python() - before
            return output

        result = capture_one(backend, shape_key, watched, *args, **kwargs)
        inside_work.captured((id(backend), shape_key), last)
        return result

    return capture


def _replaying(replay: Function) -> Function:
    """Of a graph that is replayed whole."""

    def counted(backend: Any, shape_key: Any, *args: Any, **kwargs: Any) -> Any:
        inside_work.replayed((id(backend), shape_key))
        return replay(backend, shape_key, *args, **kwargs)

    return counted


def _replaying_in_parts(replay: Function) -> Function:
    """Of a graph with eager parts between its captured ones."""

    def counted(backend: Any, shape_key: Any, *args: Any, **kwargs: Any) -> Any:
        graph = id(backend), shape_key
        if not inside_work.is_captured(graph):
            return replay(backend, shape_key, *args, **kwargs)
        before = in_python()
        result = replay(backend, shape_key, *args, **kwargs)
        inside_work.replayed_in_parts(graph, in_python() - before)
        return result

    return counted


BACKENDS = "sglang.srt.model_executor.runner_backend"
HOOKS: tuple[Hook, ...] = tuple(
    Hook(f"{BACKENDS}.{module}", f"{name}.{method}", wrap, "counts the launches of captured graphs")
    for module, name, replaying in (
        ("full_cuda_graph_backend", "FullCudaGraphBackend", _replaying),
        ("breakable_cuda_graph_backend", "BreakableCudaGraphBackend", _replaying_in_parts),
    )
    for method, wrap in (("capture_one", _capturing), ("replay", replaying))
)

__all__ = ["HOOKS", "Work", "count_rows", "in_python", "total"]
