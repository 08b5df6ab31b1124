"""vLLM's tensors as ours: pages of 68-byte records in a shared pool, and queries with plain scales. Pages are views."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from dsv4_kernels import layout
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.formats import CONVENTIONS
from dsv4_kernels.layout import GROUPS, HEAD_DIM, Layout
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

if TYPE_CHECKING:
    from torch import Tensor

HADAMARD = "DSV4_INDEX_HADAMARD"
RECORD = 68
RUN_HEADS = 32
"""From so many query heads on a run has 32 keys, below it 16 (AITER's `cache_format`)."""

LAYOUTS: dict[tuple[int, int], Layout] = {
    (32, 64): layout.RECORD68,
    (16, 64): layout.RECORD68_N16,
    (32, 128): layout.RECORD68_P128,
}
"""By keys a run and keys a page."""


def hadamard() -> bool:
    """Whether keys and queries are rotated before FP4; vLLM itself never does."""
    return os.environ.get(HADAMARD, "0") == "1"


def run_of(heads: int) -> int:
    """Keys of a run of a page that queries of `heads` heads read."""
    return 32 if heads >= RUN_HEADS else 16


def spec(run: int, entries: int) -> IndexSpec:
    """How keys lie in pages of `entries` keys in runs of `run`. Raises ArgumentError for pages without a kernel."""
    if (run, entries) not in LAYOUTS:
        accepted = ", ".join(f"{page} in runs of {keys}" for keys, page in LAYOUTS)
        raise ArgumentError("page entries", f"{entries} in runs of {run}", accepted)
    return IndexSpec(LAYOUTS[run, entries], CONVENTIONS["deepseek"], hadamard())


def pool(k_cache: Tensor, run: int) -> IndexPool:
    """vLLM's index cache, uint8 [pages, entries, 68] or [pages, entries, 1, 68], whose pages may lie far apart.

    The pool is a view with the cache's own page stride and offset: nothing is copied.
    """
    if k_cache.dtype != torch.uint8 or k_cache.shape[-1] != RECORD or k_cache.stride(1) != RECORD:
        found = f"{k_cache.dtype} {list(k_cache.shape)} strides {list(k_cache.stride())}"
        raise ArgumentError("k_cache", found, f"uint8 [pages, entries, {RECORD}] with dense pages")
    pages, entries = k_cache.shape[:2]
    view = k_cache.as_strided((pages, entries * RECORD), (k_cache.stride(0), 1))
    return IndexPool(spec(run, entries), {"pages": view})


def query(values: Tensor, scales: Tensor, stored: IndexSpec) -> Query:
    """`values` uint8 [..., H, 64] and `scales` uint8 [..., H, 4] as queries against keys that are `stored` so."""
    heads = values.shape[-2]
    payload = values.reshape(-1, heads, HEAD_DIM // 2)
    plain = scales.reshape(-1, heads // 16, 16, GROUPS)
    turned = plain.new_zeros(len(plain), 1, GROUPS, 16, max(4, heads // 16))
    turned[:, 0, :, :, : heads // 16] = plain.permute(0, 3, 2, 1)
    return Query(stored, heads, payload=payload, scale=turned)


def plain_scales(made: Query) -> Tensor:
    """uint8 [T, H, 4]: a query's scales by head, as vLLM reads them (four bytes are one int32)."""
    assert made.scale is not None
    return made.scale[:, 0].permute(0, 3, 2, 1).flatten(1, 2)[:, : made.heads].contiguous()


def angles(cos_sin_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, 32] of vLLM's table [positions, 64], as views."""
    half = cos_sin_cache.shape[-1] // 2
    return cos_sin_cache[:, :half], cos_sin_cache[:, half:]
