"""RMSNorm, RoPE and store of main KV rows, with RoPE of queries, in one launch: the portable kernel and its host."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.portable import kv_math
from dsv4_kernels.portable.kv_store import STORE_ROWS, STORE_WARPS, kv_constants, put

QUERY_ROWS = 32


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
    PAGE: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_BASE: tl.constexpr,
    GROUP: tl.constexpr,
    E2M1: tl.constexpr,
    PLAIN_ROPE: tl.constexpr,
    NATIVE: tl.constexpr,
):
    row = program.to(tl.int64) * R + tl.arange(0, R)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1)
    live = (slot >= 0) & (slot < slots)
    d = tl.arange(0, 512)
    x = tl.load(kv_ptr + (row * stride_kv)[:, None] + d[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    x = kv_math.round_bfloat16(kv_math.rms_norm_512(x, tl.load(weight_ptr + d).to(tl.float32), eps, R), NATIVE)
    position = tl.load(positions_ptr + row, mask=live, other=0)
    x = kv_math.turn_rows(x, cos_ptr, sin_ptr, position, limit, stride_angle, live, R, NATIVE)
    put(
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
        E2M1,
        PLAIN_ROPE,
        NATIVE,
    )


@triton.jit
def _query_rows(
    program,
    query_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    rows,
    heads,
    limit,
    stride_query,
    stride_head,
    stride_angle,
    Q: tl.constexpr,
    NATIVE: tl.constexpr,
):
    index = program.to(tl.int64) * Q + tl.arange(0, Q)
    row, head = index // heads, index % heads
    live = row < rows
    position = tl.load(positions_ptr + row, mask=live, other=0)
    at = (row * stride_query + head * stride_head + 448)[:, None] + tl.arange(0, 64)[None, :]
    x = tl.load(query_ptr + at, mask=live[:, None], other=0.0).to(tl.float32)
    held = tl.minimum(tl.maximum(position, 0), limit - 1)
    angle_at = (held * stride_angle)[:, None] + tl.arange(0, 32)[None, :]
    cos = tl.load(cos_ptr + angle_at, mask=live[:, None], other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle_at, mask=live[:, None], other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (Q, 32, 2)))
    y = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (Q, 64))
    kv_math.store_rounded(query_ptr, at, y, live[:, None], NATIVE)


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
    PAGE: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    SCALE_STRIDE: tl.constexpr,
    SCALE_BASE: tl.constexpr,
    GROUP: tl.constexpr,
    E2M1: tl.constexpr,
    PLAIN_ROPE: tl.constexpr,
    NATIVE: tl.constexpr,
    HAS_QUERY: tl.constexpr,
):
    program = tl.program_id(0)
    if program < kv_programs:
        _kv_rows(
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
    elif HAS_QUERY:
        _query_rows(
            program - kv_programs,
            query_ptr,
            cos_ptr,
            sin_ptr,
            positions_ptr,
            rows,
            heads,
            limit,
            stride_query,
            stride_head,
            stride_angle,
            Q,
            NATIVE,
        )


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
) -> None:
    """See `kv_ops.norm_rope_store_kv`."""
    n, heads = kv.shape[0], query.shape[1] if query is not None else 1
    if not n:
        return
    if cos.stride(0) != sin.stride(0):
        cos, sin = cos.contiguous(), sin.contiguous()
    kv_programs = triton.cdiv(n, STORE_ROWS)
    query_programs = triton.cdiv(n * heads, QUERY_ROWS) if query is not None else 0
    _norm_rope_store_kernel[(kv_programs + query_programs,)](
        kv,
        norm_weight,
        cos,
        sin,
        positions,
        slots,
        kv if query is None else query,
        pool.pages,
        n,
        pool.slots,
        cos.shape[0],
        kv.stride(0),
        cos.stride(0),
        0 if query is None else query.stride(0),
        0 if query is None else query.stride(1),
        pool.page_stride,
        norm_eps,
        heads,
        kv_programs,
        R=STORE_ROWS,
        Q=QUERY_ROWS,
        **kv_constants(pool),
        HAS_QUERY=query is not None,
        num_warps=STORE_WARPS,
        enable_fp_fusion=False,
    )
