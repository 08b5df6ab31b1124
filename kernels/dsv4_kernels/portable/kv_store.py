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
def put_pairs(
    even,
    odd,
    slot,
    live,
    pages_ptr,
    page_stride,
    R: tl.constexpr,
    PAGE: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_BASE: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Quantise the even and odd values [R, 256] of rows to e2m1 and store those that live at int64 `slot` [R]."""
    page, o = pages_ptr + (slot // PAGE) * page_stride, slot % PAGE
    pairs, scales = kv_math.quantize_e2m1(even, odd, R, NATIVE)
    data_at = (page + o * ROW_STRIDE)[:, None] + tl.arange(0, 256)[None, :]
    tl.store(data_at, pairs, mask=live[:, None])
    scale_at = (page + o * SCALE_STRIDE + SCALE_BASE)[:, None] + tl.arange(0, 32)[None, :]
    tl.store(scale_at, scales, mask=live[:, None])


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
    PLAIN_ROPE: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Quantise float32 [R, 512] to e4m3 and store the rows that live at int64 `slot` [R]."""
    page, o = pages_ptr + (slot // PAGE) * page_stride, slot % PAGE
    data_at = (page + o * ROW_STRIDE)[:, None]
    g, d = tl.arange(0, 512 // GROUP), tl.arange(0, 512)
    codes, byte = kv_math.quantize_e4m3(tl.reshape(x, (R, 512 // GROUP, GROUP)), NATIVE)
    coded = live[:, None]
    if PLAIN_ROPE:
        coded = coded & (d[None, :] < 448)
        # The group of RoPE values has no scale; its byte is padding.
        byte = tl.where(g[None, :] < 7, byte, 0)
        tail_at = (data_at + 448).to(tl.pointer_type(tl.int16)) + (d - 448)[None, :]
        tail = kv_math.bfloat16_bits(x, NATIVE).to(tl.int16)
        tl.store(tail_at, tail, mask=live[:, None] & (d[None, :] >= 448))
    tl.store(data_at + d[None, :], tl.reshape(codes, (R, 512)), mask=coded)
    scale_at = (page + o * SCALE_STRIDE + SCALE_BASE)[:, None] + g[None, :]
    tl.store(scale_at, byte.to(tl.uint8), mask=live[:, None])


@triton.jit
def put(
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
    """Quantise float32 [R, 512] as the layout says and store the rows that live at int64 `slot` [R]."""
    if E2M1:
        even, odd = tl.split(tl.reshape(x, (R, 256, 2)))
        put_pairs(
            even,
            odd,
            slot,
            live,
            pages_ptr,
            page_stride,
            R,
            PAGE,
            ROW_STRIDE,
            SCALE_STRIDE,
            SCALE_BASE,
            NATIVE,
        )
    else:
        put_rows(
            x,
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
            PLAIN_ROPE,
            NATIVE,
        )


@triton.jit
def _load_pairs(at, live, PAIRED: tl.constexpr):
    """Even and odd values, float32 [R, 256], of rows that begin at pointers `at` [R]; PAIRED: bfloat16 by twos."""
    j = tl.arange(0, 256)[None, :]
    if PAIRED:
        two = tl.load(at.to(tl.pointer_type(tl.int32))[:, None] + j, mask=live[:, None], other=0)
        return (two << 16).to(tl.float32, bitcast=True), (two & -65536).to(tl.float32, bitcast=True)
    even = tl.load(at[:, None] + 2 * j, mask=live[:, None], other=0.0)
    odd = tl.load(at[:, None] + 2 * j + 1, mask=live[:, None], other=0.0)
    return even.to(tl.float32), odd.to(tl.float32)


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
    PAIRED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1)
    live = (slot >= 0) & (slot < slots)
    at = rows_ptr + row * stride_rows
    if E2M1:
        even, odd = _load_pairs(at, live, PAIRED)
        put_pairs(
            even,
            odd,
            slot,
            live,
            pages_ptr,
            page_stride,
            R,
            PAGE,
            ROW_STRIDE,
            SCALE_STRIDE,
            SCALE_BASE,
            NATIVE,
        )
    else:
        x = tl.load(at[:, None] + tl.arange(0, 512)[None, :], mask=live[:, None], other=0.0).to(tl.float32)
        put_rows(
            x,
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
            PAIRED=_paired(rows),
            **kv_constants(pool),
            num_warps=STORE_WARPS,
            enable_fp_fusion=False,
        )


def _paired(rows: Tensor) -> bool:
    """Whether two neighbours are one aligned 32-bit word."""
    return rows.dtype == torch.bfloat16 and rows.stride(0) % 2 == 0 and rows.data_ptr() % 4 == 0


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
        "NATIVE": native(pool.device),
    }


@cache
def native(device: torch.device) -> bool:
    """Whether the device is NVIDIA's and converts e4m3 itself."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)
