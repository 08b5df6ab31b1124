"""Main KV rows out of pages: the portable kernel and its host side."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.kv_layout import WIDTH
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.portable import kv_math
from dsv4_kernels.portable.kv_store import kv_constants

DEQUANTIZE_ROWS = 4
DEQUANTIZE_WARPS = 2


@triton.jit
def _dequantize_kernel(
    slots_ptr,
    pages_ptr,
    out_ptr,
    rows,
    slots,
    page_stride,
    R: tl.constexpr,
    PAGE: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_BASE: tl.constexpr,
    GROUP: tl.constexpr,
    E2M1: tl.constexpr,
    PLAIN_ROPE: tl.constexpr,
    NATIVE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1)
    live = ((slot >= 0) & (slot < slots))[:, None]
    page = pages_ptr + (slot // PAGE) * page_stride
    o = slot % PAGE
    data_at = (page + o * ROW_STRIDE)[:, None]
    g = tl.arange(0, 512 // GROUP)
    scales = tl.load((page + o * SCALE_STRIDE + SCALE_BASE)[:, None] + g[None, :], mask=live, other=0)
    d = tl.arange(0, 512)
    if E2M1:
        packed = tl.load(data_at + tl.arange(0, 256)[None, :], mask=live, other=0).to(tl.int32)
        values = tl.join(kv_math.decode_e2m1(packed), kv_math.decode_e2m1(packed >> 4))
        scale = kv_math.decode_e4m3(scales, NATIVE)
    else:
        coded = live
        if PLAIN_ROPE:
            coded = live & (d[None, :] < 448)
        values = kv_math.decode_e4m3(tl.load(data_at + d[None, :], mask=coded, other=0), NATIVE)
        scale = kv_math.decode_e8m0(scales.to(tl.int32))
    x = tl.reshape(tl.reshape(values, (R, 512 // GROUP, GROUP)) * tl.expand_dims(scale, 2), (R, 512))
    x = tl.where(live, x, 0.0)
    if PLAIN_ROPE:
        tail_at = (data_at + 448).to(tl.pointer_type(tl.int16)) + (d - 448)[None, :]
        tail = tl.load(tail_at, mask=live & (d[None, :] >= 448), other=0).to(tl.int32) << 16
        x = tl.where(d[None, :] >= 448, tail.to(tl.float32, bitcast=True), x)
    kv_math.store_rounded(out_ptr, (row * 512)[:, None] + d[None, :], x, (row < rows)[:, None], NATIVE)


def dequantize_kv(pool: KVPool, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """See `kv_ops.dequantize_kv`."""
    n = slots.shape[0]
    out = torch.empty(n, WIDTH, dtype=dtype, device=pool.device)
    if n:
        _dequantize_kernel[(triton.cdiv(n, DEQUANTIZE_ROWS),)](
            slots,
            pool.pages,
            out,
            n,
            pool.slots,
            pool.page_stride,
            R=DEQUANTIZE_ROWS,
            **kv_constants(pool),
            num_warps=DEQUANTIZE_WARPS,
            enable_fp_fusion=False,
        )
    return out
