"""vLLM's captured graphs, whose replays launch without Python."""

from __future__ import annotations

from typing import Any

from dsv4_serve.engines import inside_work
from dsv4_serve.engines.hooks import Function, Hook


def _counted(call: Function) -> Function:
    """`CUDAGraphWrapper.__call__`: captures, replays, or runs what it wraps, by the forward pass around it."""

    def called(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        graph = _graph(wrapper)
        replays = graph is not None
        before = inside_work.in_python()
        result = call(wrapper, *args, **kwargs)
        ran = inside_work.in_python() - before
        if replays:
            inside_work.replayed_in_parts(graph, ran)
        elif (made := _graph(wrapper)) is not None:
            inside_work.captured(made, ran)
        return result

    return called


def _graph(wrapper: Any) -> tuple[int, Any] | None:
    """The graph that this forward pass replays; None where there is none."""
    from vllm.forward_context import get_forward_context, is_forward_context_available

    if not is_forward_context_available():
        return None
    context = get_forward_context()
    if context.cudagraph_runtime_mode != wrapper.runtime_mode:
        return None
    entry = wrapper.concrete_cudagraph_entries.get(context.batch_descriptor)
    return None if entry is None or entry.cudagraph is None else (id(wrapper), context.batch_descriptor)


HOOKS: tuple[Hook, ...] = (
    Hook(
        "vllm.compilation.cuda_graph", "CUDAGraphWrapper.__call__", _counted, "counts the launches of replayed graphs"
    ),
)
