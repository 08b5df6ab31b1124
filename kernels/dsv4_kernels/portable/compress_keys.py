"""Entries of 128 channels into index keys, in one launch: the portable kernel and its host side."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.pool import IndexPool
from dsv4_kernels.pooling import Compressor, TokenRuns
from dsv4_kernels.portable import kv_math
from dsv4_kernels.portable.addresses import convention_constants, layout_constants, require_fp4
from dsv4_kernels.portable.compress import keep_tokens, one_launch
from dsv4_kernels.portable.keys import put_keys
from dsv4_kernels.portable.pool_window import keep_token, pool_window


@triton.jit(do_not_specialize=["requests", "tokens", "slots", "limit", "keep"])
def keys_kernel(
    projected_ptr,
    ring_ptr,
    ape_ptr,
    requests_ptr,
    positions_ptr,
    first_ptr,
    slots_ptr,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    payload_ptr,
    scale_ptr,
    requests,
    tokens,
    slots,
    limit,
    stride_projected,
    stride_ring,
    stride_angle,
    payload_stride,
    scale_stride,
    eps,
    keep,
    RATIO: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_APE: tl.constexpr,
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
    """One row a program; with `keep` it goes to the state as well."""
    row = tl.program_id(0).to(tl.int64)
    request, position = tl.load(requests_ptr + row), tl.load(positions_ptr + row).to(tl.int32)
    used = (request >= 0) & (request < requests)
    held = ring_ptr + request * stride_ring
    if keep != 0:
        keep_token(projected_ptr, held, row, position, used, stride_projected, tokens, WINDOW // RATIO * 256)
    if used & ((position + 1) % RATIO == 0):
        first = tl.load(first_ptr + row)
        x = pool_window(
            projected_ptr,
            held,
            ape_ptr,
            row,
            first,
            position,
            stride_projected,
            tokens,
            128,
            RATIO,
            WINDOW,
            PARTS,
            HAS_APE,
        )
        slot = tl.load(slots_ptr + row + tl.arange(0, 1))
        first_position = tl.minimum(position - (RATIO - 1), limit - 1) + tl.arange(0, 1)
        put_keys(
            kv_math.round_bfloat16(x, False),
            slot,
            (slot >= 0) & (slot < slots),
            first_position,
            weight_ptr,
            cos_ptr,
            sin_ptr,
            payload_ptr,
            scale_ptr,
            stride_angle,
            payload_stride,
            scale_stride,
            eps,
            1,
            HADAMARD,
            PAGE,
            P_SLOT,
            P_GROUP,
            P_RUN,
            P_RUN_STRIDE,
            S_BASE,
            S_SLOT,
            S_LANE,
            S_LANES,
            S_RUN,
            S_RUN_STRIDE,
            FLOOR,
            FLOOR_ON_SCALE,
            RECIPROCAL,
            MAX_BYTE,
            TIES_EVEN,
            KEEP_MINUS_ZERO,
            FAKE_FLOOR,
        )


def compress_index_keys(
    pool: IndexPool, compressor: Compressor, projected: Tensor, cos: Tensor, sin: Tensor, runs: TokenRuns, slots: Tensor
) -> None:
    """See `compress_ops.compress_index_keys`."""
    require_fp4(pool.spec)
    of, ring = compressor.pooling, compressor.ring
    assert ring is not None
    if not runs.rows:
        return
    if cos.stride(0) != sin.stride(0):
        cos, sin = cos.contiguous(), sin.contiguous()
    keys_kernel[(runs.rows,)](
        projected,
        ring,
        projected if compressor.ape is None else compressor.ape,
        runs.requests,
        runs.positions,
        runs.first,
        slots,
        compressor.norm_weight,
        cos,
        sin,
        pool.payload,
        pool.scale,
        ring.shape[0],
        ring.shape[1],
        pool.tokens,
        cos.shape[0],
        projected.stride(0),
        ring.stride(0),
        cos.stride(0),
        pool.payload_stride,
        pool.scale_stride,
        compressor.norm_eps,
        int(one_launch(compressor, runs)),
        RATIO=of.ratio,
        WINDOW=of.window,
        PARTS=of.parts,
        HAS_APE=compressor.ape is not None,
        HADAMARD=pool.spec.hadamard,
        **layout_constants(pool.spec.layout),
        **convention_constants(pool.spec.convention),
        num_warps=1,
        enable_fp_fusion=False,
    )
    if not one_launch(compressor, runs):
        keep_tokens(compressor, projected, runs)
