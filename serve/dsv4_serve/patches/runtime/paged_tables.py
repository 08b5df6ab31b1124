"""Give the paged logits kernels page tables to read ahead in, of few widths, and only pools that they can address."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

from torch import Tensor

GUARD = 4
"""Zero columns behind the table: the kernels fetch the page numbers of one chunk ahead."""
LEAST = 64
FAR = 1 << 32
"""Bytes that the kernels' 32-bit offsets reach."""


def repair(module: ModuleType, defects: frozenset[str]) -> None:
    """Wrap the module's host function: tables are padded, pools that it cannot address are refused by name."""
    name = "flydsl_" + module.__name__.rpartition(".")[2]
    function = getattr(module, name)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def addressed(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        # A launch with a plan is the row-group kernel, which addresses pages by itself.
        if bound.arguments.get("plan") is None:
            check_pools(bound.arguments["kv_cache"], bound.arguments["kv_scale"], defects)
            bound.arguments["block_tables"] = padded(bound.arguments["block_tables"])
        return function(*bound.args, **bound.kwargs)

    setattr(module, name, addressed)


def padded(table: Tensor) -> Tensor:
    """int32 [S, W] for `table` int32 [S, P]: zeros behind its columns, W a power of two from 64, at least P + 4.

    So a kernel that is compiled for each width is compiled at most once for each power of two.
    """
    width = max(LEAST, 1 << (table.shape[1] + GUARD - 1).bit_length())
    wide = table.new_zeros(table.shape[0], width)
    wide[:, : table.shape[1]] = table
    return wide


def check_pools(payload: Tensor, scale: Tensor, defects: frozenset[str]) -> None:
    """ValueError: pages with gaps between them, or a pool beyond 4 GiB, where those are among the defects."""
    for name, pool in (("kv_cache", payload), ("kv_scale", scale)):
        if (not defects or "strided pages" in defects) and not pool.is_contiguous():
            raise ValueError(f"{name} has strides {tuple(pool.stride())}: accepted are pages without gaps")
        size = pool.numel() * pool.element_size()
        if (not defects or "pages past 4 GiB" in defects) and size > FAR:
            raise ValueError(f"{name} has {size} bytes: accepted are at most {FAR}")
