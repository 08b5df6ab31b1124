"""RMSNorm, RoPE and store of main KV rows, with RoPE of queries, in one launch: the portable kernel and its host."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.kv_layout import Code
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.portable import kv_math
from dsv4_kernels.portable.kv_math import SM89
from dsv4_kernels.portable.kv_store import (
    Machine,
    kv_constants,
    load_pairs,
    paired,
    put_coded,
    put_plain,
    row_places,
)
from dsv4_kernels.portable.query_rope import HEADS, QUERY_ROWS, query_rows
from dsv4_kernels.triton_launch import launch

ROWS: dict[Code, int] = {"e4m3": 2, "e2m1": 4}
"""Rows of KV that a program of one warp takes, the fastest of those tried on an H200."""

REGISTERS: dict[Code, int] = {"e4m3": 64, "e2m1": 96}
"""The most of a thread on NVIDIA's machines, likewise."""


@triton.jit
def weighed(
    even, odd, weight_ptr, inverse, FIRST: tl.constexpr, N: tl.constexpr, WIDE: tl.constexpr, NATIVE: tl.constexpr
):
    """Values [R, N] from pair FIRST on, times 1 / rms [R], times their weights, rounded to bfloat16.

    WIDE: bytes of two weights that are one aligned word, or 0.
    """
    j = FIRST + tl.arange(0, N)
    if WIDE == 4:
        of_even, of_odd = kv_math.of_pairs(tl.load(weight_ptr.to(tl.pointer_type(tl.int32)) + j))
    elif WIDE == 8:
        two = tl.load(weight_ptr.to(tl.pointer_type(tl.int64)) + j)
        of_even = two.to(tl.int32).to(tl.float32, bitcast=True)
        of_odd = (two >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        of_even = tl.load(weight_ptr + 2 * j).to(tl.float32)
        of_odd = tl.load(weight_ptr + (2 * j + 1)).to(tl.float32)
    even = (even * inverse[:, None]) * of_even[None, :]
    odd = (odd * inverse[:, None]) * of_odd[None, :]
    return kv_math.of_pairs(kv_math.bfloat16_pairs(even, odd, NATIVE))


@triton.jit
def turned(
    even,
    odd,
    cos_ptr,
    sin_ptr,
    position,
    limit,
    stride_angle,
    live,
    FIRST: tl.constexpr,
    N: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Values [R, N] from pair FIRST on with those from pair 224 on turned by their row's position [R] and rounded."""
    pair = FIRST + tl.arange(0, N)[None, :]
    held = tl.minimum(tl.maximum(position, 0), limit - 1).to(tl.int32)
    at = (held.to(tl.int64) * stride_angle)[:, None] + (pair - 224)
    turning = live[:, None] & (pair >= 224)
    cos = tl.load(cos_ptr + at, mask=turning, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + at, mask=turning, other=0.0).to(tl.float32)
    words = kv_math.bfloat16_pairs(even * cos - odd * sin, even * sin + odd * cos, NATIVE)
    new_even, new_odd = kv_math.of_pairs(words)
    if FIRST == 224:
        return new_even, new_odd
    # A value that stays is passed through, because x - y * 0 would lose the sign of a zero and spread a NaN.
    return tl.where(pair >= 224, new_even, even), tl.where(pair >= 224, new_odd, odd)


@triton.jit
def _kv_rows(
    program,
    kv_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    pages_ptr,
    rows,
    slots,
    limit,
    stride_kv,
    stride_angle,
    page_stride,
    eps,
    R: tl.constexpr,
    OF: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
    PAIRED: tl.constexpr,
    WIDE: tl.constexpr,
):
    row = program.to(tl.int64) * R + tl.arange(0, R)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1)
    live = slot.to(tl.uint64) < tl.cast(slots, tl.uint64)
    position = tl.load(positions_ptr + row, mask=live, other=0)
    data, scales = row_places(pages_ptr, page_stride, slot, OF, PAGE)
    at = kv_ptr + row * stride_kv
    even, odd = load_pairs(at, live, 0, 256, PAIRED)
    inverse = kv_math.inverse_rms(even, odd, eps, R)
    even, odd = weighed(even, odd, weight_ptr, inverse, 0, 256, WIDE, NATIVE)
    if NATIVE == SM89:
        # The RoPE values once more, from the cache, spread over all lanes: beside the others, turning them would cost
        # as much as turning all. AMD's compiler spreads nothing then and spills.
        put_coded(even, odd, data, scales, live, 0, R, 256, 224, OF, ALIGNED, True, NATIVE)
        even, odd = load_pairs(at, live, 224, 32, PAIRED)
        even, odd = weighed(even, odd, weight_ptr, inverse, 224, 32, WIDE, NATIVE)
        even, odd = turned(even, odd, cos_ptr, sin_ptr, position, limit, stride_angle, live, 224, 32, NATIVE)
        if OF.plain_rope:
            put_plain(even, odd, data, scales, live, 224, 32, ALIGNED, True, NATIVE)
        else:
            put_coded(even, odd, data, scales, live, 224, R, 32, 256, OF, ALIGNED, True, NATIVE)
    else:
        even, odd = turned(even, odd, cos_ptr, sin_ptr, position, limit, stride_angle, live, 0, 256, NATIVE)
        put_coded(even, odd, data, scales, live, 0, R, 256, OF.coded // 2, OF, ALIGNED, True, NATIVE)
        if OF.plain_rope:
            put_plain(even, odd, data, scales, live, 0, 256, ALIGNED, True, NATIVE)


@triton.jit
def _norm_rope_store_kernel(
    kv_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    query_ptr,
    pages_ptr,
    rows,
    slots,
    limit,
    stride_kv,
    stride_angle,
    stride_query,
    stride_head,
    page_stride,
    eps,
    heads,
    kv_programs,
    R: tl.constexpr,
    Q: tl.constexpr,
    H: tl.constexpr,
    OF: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
    PAIRED: tl.constexpr,
    WIDE: tl.constexpr,
    QPAIRED: tl.constexpr,
    HAS_QUERY: tl.constexpr,
):
    program = tl.program_id(0)
    if program < kv_programs:
        _kv_rows(program, kv_ptr, weight_ptr, cos_ptr, sin_ptr, positions_ptr, slots_ptr, pages_ptr, rows, slots, limit,
                 stride_kv, stride_angle, page_stride, eps, R, OF, PAGE, ALIGNED, NATIVE, PAIRED, WIDE)  # fmt: skip
    elif HAS_QUERY:
        query_rows(program - kv_programs, query_ptr, cos_ptr, sin_ptr, positions_ptr, rows, heads, limit, stride_query,
                    stride_head, stride_angle, Q, H, QPAIRED, NATIVE)  # fmt: skip


def norm_rope_store_kv(
    pool: KVPool,
    kv: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    query: Tensor | None,
    machine: Machine | None = None,
) -> None:
    """See `kv_ops.norm_rope_store_kv`; `machine` as in `kv_store.store_kv`."""
    n, heads = kv.shape[0], query.shape[1] if query is not None else 1
    if not n:
        return
    if cos.stride(0) != sin.stride(0):
        cos, sin = cos.contiguous(), sin.contiguous()
    kv_programs = triton.cdiv(n, ROWS[pool.layout.code])
    query_programs = triton.cdiv(n, QUERY_ROWS) * triton.cdiv(heads, HEADS) if query is not None else 0
    arguments = {
        "kv_ptr": kv,
        "weight_ptr": norm_weight,
        "cos_ptr": cos,
        "sin_ptr": sin,
        "positions_ptr": positions,
        "slots_ptr": slots,
        "query_ptr": kv if query is None else query,
        "pages_ptr": pool.pages,
        "rows": n,
        "slots": pool.slots,
        "limit": cos.shape[0],
        "stride_kv": kv.stride(0),
        "stride_angle": cos.stride(0),
        "stride_query": 0 if query is None else query.stride(0),
        "stride_head": 0 if query is None else query.stride(1),
        "page_stride": pool.page_stride,
        "eps": norm_eps,
        "heads": heads,
        "kv_programs": kv_programs,
    }
    constants = kv_constants(pool, machine) | {
        "R": ROWS[pool.layout.code],
        "Q": QUERY_ROWS,
        "H": HEADS,
        "PAIRED": paired(kv),
        "WIDE": wide(norm_weight),
        "QPAIRED": query is not None and paired(query),
        "HAS_QUERY": query is not None,
    }
    registers = REGISTERS[pool.layout.code] if constants["NATIVE"] == SM89.value else None
    launch(_norm_rope_store_kernel, (kv_programs + query_programs,), arguments, constants, 1, registers)


def wide(weight: Tensor) -> int:
    """Bytes of two neighbouring weights that are one aligned word of a type that the kernel takes apart, else 0."""
    size = 2 * weight.element_size()
    known = weight.dtype in (torch.bfloat16, torch.float32)
    return size if known and weight.stride(0) == 1 and weight.data_ptr() % size == 0 else 0
