"""Queries and keys into FP4, and keys back: the portable kernels and their host side."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.layout import GROUPS, HEAD_DIM
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.portable import device_math
from dsv4_kernels.portable.addresses import convention_constants, layout_constants, payload_at, scale_at

HEADS_PER_BLOCK = 16
KEYS_PER_BLOCK = 4


@triton.jit
def _query_kernel(
    q_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    weights_ptr,
    payload_ptr,
    scale_ptr,
    weights_out_ptr,
    stride_row,
    stride_head,
    stride_angle,
    stride_weights,
    weight_scale,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HADAMARD: tl.constexpr,
    WITH_WEIGHTS: tl.constexpr,
    FLOOR: tl.constexpr,
    FLOOR_ON_SCALE: tl.constexpr,
    RECIPROCAL: tl.constexpr,
    MAX_BYTE: tl.constexpr,
    TIES_EVEN: tl.constexpr,
    KEEP_MINUS_ZERO: tl.constexpr,
    FAKE_FLOOR: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1)
    lane = tl.arange(0, 16)
    c = tl.arange(0, 4)
    scale_out = scale_ptr + row * (64 * COLUMNS) + (c * (16 * COLUMNS))[None, :] + (lane * COLUMNS + column)[:, None]
    if column * 16 >= HEADS:
        # Tiles past the last head are read by the scaled matrix instruction and must hold a scale: zero.
        tl.store(scale_out, tl.zeros((16, 4), tl.uint8))
    else:
        head = column * 16 + lane
        d = tl.arange(0, 128)
        x = tl.load(q_ptr + row * stride_row + (head * stride_head)[:, None] + d[None, :]).to(tl.float32)
        position = tl.load(positions_ptr + row) + tl.zeros((16,), tl.int64)
        cos, sin = device_math.rope_angles(cos_ptr, sin_ptr, position, stride_angle, lane >= 0)
        x = device_math.rope(x, cos, sin, 16)
        if HADAMARD:
            x = device_math.hadamard(x, 16)
        code, byte = device_math.quantize(
            x, 16, FLOOR, FLOOR_ON_SCALE, RECIPROCAL, MAX_BYTE, TIES_EVEN, KEEP_MINUS_ZERO, FAKE_FLOOR
        )
        j = tl.arange(0, 64)
        tl.store(payload_ptr + row * (HEADS * 64) + (head * 64)[:, None] + j[None, :], device_math.pack(code, 16))
        tl.store(scale_out, byte.to(tl.uint8))
        if WITH_WEIGHTS:
            w = tl.load(weights_ptr + row * stride_weights + head).to(tl.float32)
            w = device_math.to_bfloat16(w).to(tl.float32) * weight_scale
            tl.store(weights_out_ptr + row * HEADS + head, device_math.to_bfloat16(w))


@triton.jit
def _key_kernel(
    k_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    slots_ptr,
    payload_ptr,
    scale_ptr,
    rows,
    stride_k,
    stride_angle,
    payload_stride,
    scale_stride,
    eps,
    R: tl.constexpr,
    HADAMARD: tl.constexpr,
    PAGE: tl.constexpr,
    P_SLOT: tl.constexpr,
    P_GROUP: tl.constexpr,
    P_RUN: tl.constexpr,
    P_RUN_STRIDE: tl.constexpr,
    S_BASE: tl.constexpr,
    S_SLOT: tl.constexpr,
    S_LANE: tl.constexpr,
    S_LANES: tl.constexpr,
    S_RUN: tl.constexpr,
    S_RUN_STRIDE: tl.constexpr,
    FLOOR: tl.constexpr,
    FLOOR_ON_SCALE: tl.constexpr,
    RECIPROCAL: tl.constexpr,
    MAX_BYTE: tl.constexpr,
    TIES_EVEN: tl.constexpr,
    KEEP_MINUS_ZERO: tl.constexpr,
    FAKE_FLOOR: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1)
    live = slot >= 0
    d = tl.arange(0, 128)
    x = tl.load(k_ptr + (row * stride_k)[:, None] + d[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    x = device_math.rms_norm(x, tl.load(weight_ptr + d).to(tl.float32), eps, R)
    position = tl.load(positions_ptr + row, mask=live, other=0)
    cos, sin = device_math.rope_angles(cos_ptr, sin_ptr, position, stride_angle, live)
    x = device_math.rope(x, cos, sin, R)
    if HADAMARD:
        x = device_math.hadamard(x, R)
    code, byte = device_math.quantize(
        x, R, FLOOR, FLOOR_ON_SCALE, RECIPROCAL, MAX_BYTE, TIES_EVEN, KEEP_MINUS_ZERO, FAKE_FLOOR
    )
    page, o = slot // PAGE, slot % PAGE
    j = tl.arange(0, 64)
    at = payload_at(o[:, None], j[None, :], P_SLOT, P_GROUP, P_RUN, P_RUN_STRIDE)
    tl.store(payload_ptr + (page * payload_stride)[:, None] + at, device_math.pack(code, R), mask=live[:, None])
    c = tl.arange(0, 4)
    at = scale_at(o[:, None], c[None, :], S_BASE, S_SLOT, S_LANE, S_LANES, S_RUN, S_RUN_STRIDE)
    tl.store(scale_ptr + (page * scale_stride)[:, None] + at, byte.to(tl.uint8), mask=live[:, None])


@triton.jit
def _readback_kernel(
    payload_ptr,
    scale_ptr,
    slots_ptr,
    out_ptr,
    payload_stride,
    scale_stride,
    PAGE: tl.constexpr,
    P_SLOT: tl.constexpr,
    P_GROUP: tl.constexpr,
    P_RUN: tl.constexpr,
    P_RUN_STRIDE: tl.constexpr,
    S_BASE: tl.constexpr,
    S_SLOT: tl.constexpr,
    S_LANE: tl.constexpr,
    S_LANES: tl.constexpr,
    S_RUN: tl.constexpr,
    S_RUN_STRIDE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    page, o = slot // PAGE, slot % PAGE
    d = tl.arange(0, 128)
    byte = tl.load(payload_ptr + page * payload_stride + payload_at(o, d // 2, P_SLOT, P_GROUP, P_RUN, P_RUN_STRIDE))
    code = (byte.to(tl.int32) >> (d % 2 * 4)) & 15
    at = scale_at(o, d // 32, S_BASE, S_SLOT, S_LANE, S_LANES, S_RUN, S_RUN_STRIDE)
    e = tl.load(scale_ptr + page * scale_stride + at).to(tl.int32)
    # Byte 0 is the subnormal 2**-127 and byte 255 is NaN; the others are float exponents.
    bits = tl.where(e == 0, 0x400000, tl.where(e == 255, 0x7FC00000, e << 23))
    tl.store(out_ptr + row * 128 + d, device_math.decode(code) * bits.to(tl.float32, bitcast=True))


def require_fp4(spec: IndexSpec) -> None:
    if spec.layout.format != "fp4":
        raise ArgumentError("spec.layout", repr(spec.layout.name), "an FP4 layout on the portable backend")


def quantize_query(q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, spec: IndexSpec) -> Query:
    """See `ops.quantize_query`."""
    return _query(q, cos, sin, positions, None, 1.0, spec)[0]


def quantize_query_with_weights(
    q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, weights: Tensor, weight_scale: float, spec: IndexSpec
) -> tuple[Query, Tensor]:
    """See `ops.quantize_query_with_weights`."""
    return _query(q, cos, sin, positions, weights, weight_scale, spec)


def _query(
    q: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    weights: Tensor | None,
    weight_scale: float,
    spec: IndexSpec,
) -> tuple[Query, Tensor]:
    require_fp4(spec)
    rows, heads, _ = q.shape
    columns = max(4, -(-heads // 64) * 4)
    payload = torch.empty(rows, heads, HEAD_DIM // 2, dtype=torch.uint8, device=q.device)
    scale = torch.empty(rows, 1, GROUPS, 16, columns, dtype=torch.uint8, device=q.device)
    out = torch.empty(rows, heads if weights is not None else 0, dtype=torch.bfloat16, device=q.device)
    sin = sin if sin.stride(0) == cos.stride(0) else sin.contiguous()
    cos = cos if sin.stride(0) == cos.stride(0) else cos.contiguous()
    if rows:
        _query_kernel[(rows, columns)](
            q,
            cos,
            sin,
            positions,
            weights if weights is not None else q,
            payload,
            scale,
            out,
            q.stride(0),
            q.stride(1),
            cos.stride(0),
            weights.stride(0) if weights is not None else 0,
            weight_scale,
            HEADS=heads,
            COLUMNS=columns,
            HADAMARD=spec.hadamard,
            WITH_WEIGHTS=weights is not None,
            **convention_constants(spec.convention),
            num_warps=4,
            enable_fp_fusion=False,
        )
    return Query(spec, heads, payload=payload, scale=scale), out


def write_index_keys(
    pool: IndexPool,
    k: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
) -> None:
    """See `ops.write_index_keys`."""
    require_fp4(pool.spec)
    rows = k.shape[0]
    if not rows:
        return
    sin = sin if sin.stride(0) == cos.stride(0) else sin.contiguous()
    cos = cos if sin.stride(0) == cos.stride(0) else cos.contiguous()
    _key_kernel[(triton.cdiv(rows, KEYS_PER_BLOCK),)](
        k,
        norm_weight,
        cos,
        sin,
        positions,
        slots,
        pool.payload,
        pool.scale,
        rows,
        k.stride(0),
        cos.stride(0),
        pool.payload_stride,
        pool.scale_stride,
        norm_eps,
        R=KEYS_PER_BLOCK,
        HADAMARD=pool.spec.hadamard,
        **layout_constants(pool.spec.layout),
        **convention_constants(pool.spec.convention),
        num_warps=4,
        enable_fp_fusion=False,
    )


def readback(pool: IndexPool, slots: Tensor) -> Tensor:
    """See `ops.readback`."""
    require_fp4(pool.spec)
    out = torch.empty(slots.shape[0], HEAD_DIM, dtype=torch.float32, device=pool.device)
    if slots.shape[0]:
        _readback_kernel[(slots.shape[0],)](
            pool.payload,
            pool.scale,
            slots,
            out,
            pool.payload_stride,
            pool.scale_stride,
            **layout_constants(pool.spec.layout),
            enable_fp_fusion=False,
        )
    return out
