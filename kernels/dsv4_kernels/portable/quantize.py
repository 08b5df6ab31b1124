"""Queries into FP4, with head weights in the same launch: the portable kernel and its host side."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.layout import GROUPS, HEAD_DIM
from dsv4_kernels.pool import IndexSpec, Query
from dsv4_kernels.portable import device_math, kv_math
from dsv4_kernels.portable.addresses import require_fp4


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
    RULE: tl.constexpr,
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
        if RULE.fake_quantize:
            x = kv_math.round_bfloat16(x, 0)
        if HADAMARD:
            x = device_math.hadamard(x, 16)
        code, byte = device_math.quantize(x, 16, RULE)
        j = tl.arange(0, 64)
        tl.store(payload_ptr + row * (HEADS * 64) + (head * 64)[:, None] + j[None, :], device_math.pack(code, 16))
        tl.store(scale_out, byte.to(tl.uint8))
        if WITH_WEIGHTS:
            w = tl.load(weights_ptr + row * stride_weights + head).to(tl.float32)
            w = kv_math.round_bfloat16(w, 0) * weight_scale
            # As bits, because the interpreter's own conversion is off.
            at = weights_out_ptr.to(tl.pointer_type(tl.int16)) + row * HEADS + head
            tl.store(at, kv_math.bfloat16_bits(w, 0).to(tl.int16))


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
            RULE=spec.convention,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return Query(spec, heads, payload=payload, scale=scale), out
