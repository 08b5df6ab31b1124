"""Entries of 128 channels into index keys, in one launch: the portable kernel and its host side."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.pooling import Compressor, TokenRuns
from dsv4_kernels.portable import kv_math
from dsv4_kernels.portable.addresses import require_fp4
from dsv4_kernels.portable.compress import keep_tokens, one_launch, pooling_arguments, pooling_constants
from dsv4_kernels.portable.keys import put_keys
from dsv4_kernels.portable.pool_window import keep_token, pool_window
from dsv4_kernels.triton_launch import launch


@triton.jit(do_not_specialize=["rows", "requests", "tokens", "slots", "limit"])
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
    rows,
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
    R: tl.constexpr,
    RATIO: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_APE: tl.constexpr,
    HADAMARD: tl.constexpr,
    OF: tl.constexpr,
    RULE: tl.constexpr,
):
    """R rows a program; a single one goes to the state as well."""
    begin = tl.program_id(0).to(tl.int64) * R
    for row in range(begin, tl.minimum(begin + R, rows)):
        request, position = tl.load(requests_ptr + row), tl.load(positions_ptr + row).to(tl.int32)
        first = tl.load(first_ptr + row)
        used = (request >= 0) & (request < requests)
        held = ring_ptr + request * stride_ring
        if R == 1:
            keep_token(projected_ptr, held, row, position, used, stride_projected, tokens, WINDOW // RATIO * 256)
        if used & ((position + 1) % RATIO == 0):
            x = pool_window(projected_ptr, held, ape_ptr, row, first, position, stride_projected, tokens, 128, RATIO,
                            WINDOW, PARTS, HAS_APE, 0)  # fmt: skip
            slot = tl.load(slots_ptr + row + tl.arange(0, 1))
            live = (slot >= 0) & (slot < slots)
            first_position = tl.minimum(position - (RATIO - 1), limit - 1) + tl.arange(0, 1)
            x = kv_math.round_bfloat16(x, False)
            put_keys(x, slot, live, first_position, weight_ptr, cos_ptr, sin_ptr, payload_ptr, scale_ptr, stride_angle,
                     payload_stride, scale_stride, eps, 1, HADAMARD, OF, RULE)  # fmt: skip


def compress_index_keys(
    pool: IndexPool, compressor: Compressor, projected: Tensor, cos: Tensor, sin: Tensor, runs: TokenRuns, slots: Tensor
) -> None:
    """See `compress_ops.compress_index_keys`."""
    require_fp4(pool.spec)
    if not runs.rows:
        return
    if cos.stride(0) != sin.stride(0):
        cos, sin = cos.contiguous(), sin.contiguous()
    arguments = pooling_arguments(compressor, projected, runs) | {
        "slots_ptr": slots,
        "cos_ptr": cos,
        "sin_ptr": sin,
        "payload_ptr": pool.payload,
        "scale_ptr": pool.scale,
        "slots": pool.tokens,
        "limit": cos.shape[0],
        "stride_angle": cos.stride(0),
        "payload_stride": pool.payload_stride,
        "scale_stride": pool.scale_stride,
    }
    constants = pooling_constants(compressor, runs) | keys_constants(pool.spec)
    launch(keys_kernel, (triton.cdiv(runs.rows, constants["R"]),), arguments, constants, 1)
    if not one_launch(compressor, runs):
        keep_tokens(compressor, projected, runs)


def keys_constants(of: IndexSpec) -> dict[str, Any]:
    """Compile-time choices for index keys of a form."""
    return {"HADAMARD": of.hadamard, "OF": of.layout, "RULE": of.convention}
