"""A captured graph on a CPU: the operations that ran, run again over the same tensors.

Torch's own operations are recorded one by one; kernel launches are recorded whole. A value that Python reads back
from a tensor would be frozen by a capture, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from vllm.v1.attention.ops import rocm_paged_mxfp4_indexer as rocm_ops

from dsv4_kernels import ops

LAUNCHES = (
    *((ops, name) for name in ("paged_logits", "quantize_query", "topk", "write_index_keys")),
    (rocm_ops, "_remap_compact_topk"),
)
"""Ours, and a Triton kernel of vLLM's."""
ALLOCATIONS = (torch.ops.aten.empty.memory_format, torch.ops.aten.new_empty.default, torch.ops.aten.empty_like.default)
"""A graph keeps the memory that its capture allocated."""


@dataclass
class Graph(TorchDispatchMode):
    """What was recorded: each call and the tensors that it gave."""

    nodes: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]] = field(default_factory=list)
    inside: bool = False

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.inside:
            assert func is not torch.ops.aten._local_scalar_dense.default, "a value was read back during capture"
            self.nodes.append((func, args, kwargs or {}, result))
        return result

    def launch(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """`kernel`, recorded as one."""

        def launched(*args: Any, **kwargs: Any) -> Any:
            self.inside = True
            try:
                result = kernel(*args, **kwargs)
            finally:
                self.inside = False
            self.nodes.append((kernel, args, kwargs, result))
            return result

        return launched

    def replay(self) -> None:
        for call, args, kwargs, result in self.nodes:
            if call in ALLOCATIONS:
                continue
            for old, new in zip(tree_leaves(result), tree_leaves(call(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextmanager
def capture() -> Iterator[Graph]:
    graph = Graph()
    with ExitStack() as stack:
        for module, name in LAUNCHES:
            stack.enter_context(mock.patch.object(module, name, graph.launch(getattr(module, name))))
        stack.enter_context(graph)
        yield graph
