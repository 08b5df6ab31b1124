"""Main KV rows out of pages: the portable kernel and its host side."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.kv_layout import WIDTH
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.portable import kv_codes, kv_math
from dsv4_kernels.portable.kv_store import Machine, kv_constants, row_places
from dsv4_kernels.triton_launch import launch

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
    OF: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1)
    live = ((slot >= 0) & (slot < slots))[:, None]
    data, scales_at = row_places(pages_ptr, page_stride, slot, OF, PAGE)
    group, d = tl.arange(0, 512 // OF.group)[None, :], tl.arange(0, 512)[None, :]
    scales = tl.load(scales_at[:, None] + group, mask=live, other=0)
    if OF.code == "e2m1":
        packed = tl.load(data[:, None] + tl.arange(0, 256)[None, :], mask=live, other=0).to(tl.int32)
        values = tl.join(kv_codes.decode_e2m1(packed), kv_codes.decode_e2m1(packed >> 4))
        scale = kv_codes.decode_e4m3(scales, NATIVE)
    else:
        values = kv_codes.decode_e4m3(tl.load(data[:, None] + d, mask=live & (d < OF.coded), other=0), NATIVE)
        scale = kv_codes.decode_e8m0(scales.to(tl.int32))
    x = tl.reshape(tl.reshape(values, (R, 512 // OF.group, OF.group)) * tl.expand_dims(scale, 2), (R, 512))
    x = tl.where(live, x, 0.0)
    if OF.plain_rope:
        tail_at = (data + 448).to(tl.pointer_type(tl.int16))[:, None] + (d - 448)
        tail = tl.load(tail_at, mask=live & (d >= 448), other=0).to(tl.int32) << 16
        x = tl.where(d >= 448, tail.to(tl.float32, bitcast=True), x)
    kv_math.store_rounded(out_ptr, (row * 512)[:, None] + d, x, (row < rows)[:, None], NATIVE)


def dequantize_kv(pool: KVPool, slots: Tensor, dtype: torch.dtype, machine: Machine | None = None) -> Tensor:
    """See `kv_ops.dequantize_kv`; `machine` as in `kv_store.store_kv`."""
    n = slots.shape[0]
    out = torch.empty(n, WIDTH, dtype=dtype, device=pool.device)
    if n:
        arguments = {
            "slots_ptr": slots,
            "pages_ptr": pool.pages,
            "out_ptr": out,
            "rows": n,
            "slots": pool.slots,
            "page_stride": pool.page_stride,
        }
        constants = kv_constants(pool, machine) | {"R": DEQUANTIZE_ROWS}
        launch(_dequantize_kernel, (triton.cdiv(n, DEQUANTIZE_ROWS),), arguments, constants, DEQUANTIZE_WARPS)
    return out
