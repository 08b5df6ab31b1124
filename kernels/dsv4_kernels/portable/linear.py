"""Float32 products in Triton: the router's split-K product, and a launch that adds its partials in ascending order."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.portable.router import aligned_rows, router_partials
from dsv4_kernels.triton_launch import launch

ROWS_AT_ONCE = 256
"""Bounds the partials of a step: 29 MB at 2,048 outputs of 7,168 dimensions."""

BLOCK = 256
SUM_WARPS = 1


@triton.jit
def _sum_partials_kernel(partials_ptr, out_ptr, count, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    total = tl.load(partials_ptr + at, mask=live, other=0.0)
    # Unrolled: loads that no addition waits for.
    for part in tl.static_range(1, PARTS):
        total += tl.load(partials_ptr + part * tl.cast(count, tl.int64) + at, mask=live, other=0.0)
    tl.store(out_ptr + at, total, mask=live)


def linear_float32(x: Tensor, weight: Tensor, split: int) -> Tensor:
    """See `linear.linear_float32`."""
    # Here, because each step would copy weights that it cannot take as they are.
    x, weight = aligned_rows(x), aligned_rows(weight)
    out = torch.empty(x.shape[0], weight.shape[0], dtype=torch.float32, device=x.device)
    for first in range(0, x.shape[0], ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        _sum_partials(router_partials(x[rows], weight, split), out[rows])
    return out


def _sum_partials(partials: Tensor, out: Tensor) -> None:
    arguments = {"partials_ptr": partials, "out_ptr": out, "count": out.numel()}
    constants = {"PARTS": partials.shape[0], "BLOCK": BLOCK}
    launch(_sum_partials_kernel, (triton.cdiv(out.numel(), BLOCK),), arguments, constants, SUM_WARPS)
