"""Main KV rows into pages: the portable kernel and its host side."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.portable import kv_math

STORE_ROWS = 2
STORE_WARPS = 1


@triton.jit
def put_rows(
    x,
    slot,
    live,
    pages_ptr,
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
    """Quantise float32 [R, 512] and store the rows that live at int64 `slot` [R]."""
    page = pages_ptr + (slot // PAGE) * page_stride
    o = slot % PAGE
    groups = tl.reshape(x, (R, 512 // GROUP, GROUP))
    data_at = (page + o * ROW_STRIDE)[:, None]
    g = tl.arange(0, 512 // GROUP)
    scale_at = (page + o * SCALE_STRIDE + SCALE_BASE)[:, None] + g[None, :]
    if E2M1:
        pairs, scales = kv_math.quantize_e2m1(groups, R, NATIVE)
        tl.store(data_at + tl.arange(0, 256)[None, :], tl.reshape(pairs, (R, 256)), mask=live[:, None])
        tl.store(scale_at, scales, mask=live[:, None])
    else:
        codes, byte = kv_math.quantize_e4m3(groups, NATIVE)
        d = tl.arange(0, 512)
        coded = live[:, None]
        if PLAIN_ROPE:
            coded = coded & (d[None, :] < 448)
            # The group of RoPE values has no scale; its byte is padding.
            byte = tl.where(g[None, :] < 7, byte, 0)
            tail_at = (data_at + 448).to(tl.pointer_type(tl.int16)) + (d - 448)[None, :]
            tail = kv_math.bfloat16_bits(x, NATIVE).to(tl.int16)
            tl.store(tail_at, tail, mask=live[:, None] & (d[None, :] >= 448))
        tl.store(data_at + d[None, :], tl.reshape(codes, (R, 512)), mask=coded)
        tl.store(scale_at, byte.to(tl.uint8), mask=live[:, None])


@triton.jit
def _store_kernel(
    rows_ptr,
    slots_ptr,
    pages_ptr,
    rows,
    slots,
    stride_rows,
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
    live = (slot >= 0) & (slot < slots)
    x = tl.load(rows_ptr + (row * stride_rows)[:, None] + tl.arange(0, 512)[None, :], mask=live[:, None], other=0.0)
    put_rows(
        x.to(tl.float32),
        slot,
        live,
        pages_ptr,
        page_stride,
        R,
        PAGE,
        ROW_STRIDE,
        SCALE_STRIDE,
        SCALE_BASE,
        GROUP,
        E2M1,
        PLAIN_ROPE,
        NATIVE,
    )


def store_kv(pool: KVPool, rows: Tensor, slots: Tensor) -> None:
    """See `kv_ops.store_kv`."""
    n = rows.shape[0]
    if n:
        _store_kernel[(triton.cdiv(n, STORE_ROWS),)](
            rows,
            slots,
            pool.pages,
            n,
            pool.slots,
            rows.stride(0),
            pool.page_stride,
            R=STORE_ROWS,
            **kv_constants(pool),
            num_warps=STORE_WARPS,
            enable_fp_fusion=False,
        )


def kv_constants(pool: KVPool) -> dict[str, int | bool]:
    """Keyword arguments that the kernels take for a pool's layout and device."""
    of = pool.layout
    return {
        "PAGE": pool.page_rows,
        "ROW_STRIDE": of.row_stride,
        "SCALE_STRIDE": of.scale_stride,
        "SCALE_BASE": of.scale_base(pool.page_rows),
        "GROUP": of.group,
        "E2M1": of.code == "e2m1",
        "PLAIN_ROPE": of.plain_rope,
        "NATIVE": _native(pool.device),
    }


@cache
def _native(device: torch.device) -> bool:
    """Whether the device is NVIDIA's and converts e4m3 itself."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)
