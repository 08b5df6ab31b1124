"""Keys into the pages of a pool, and back out of them: the portable kernels and their host side."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.layout import HEAD_DIM
from dsv4_kernels.pool import IndexPool
from dsv4_kernels.portable import device_math, kv_codes, kv_math
from dsv4_kernels.portable.addresses import payload_at, require_fp4, scale_at

KEYS_PER_BLOCK = 4


@triton.jit
def put_keys(
    x,
    slot,
    live,
    position,
    weight_ptr,
    cos_ptr,
    sin_ptr,
    payload_ptr,
    scale_ptr,
    stride_angle,
    payload_stride,
    scale_stride,
    eps,
    R: tl.constexpr,
    HADAMARD: tl.constexpr,
    OF: tl.constexpr,
    RULE: tl.constexpr,
):
    """Float32 [R, 128] through norm, RoPE, Hadamard and quantisation to int64 `slot` [R] of the rows that live."""
    d = tl.arange(0, 128)
    x = device_math.rms_norm(x, tl.load(weight_ptr + d).to(tl.float32), eps, R)
    if RULE.fake_quantize:
        x = kv_math.round_bfloat16(x, 0)
    cos, sin = device_math.rope_angles(cos_ptr, sin_ptr, position, stride_angle, live)
    x = device_math.rope(x, cos, sin, R)
    if RULE.fake_quantize:
        x = kv_math.round_bfloat16(x, 0)
    if HADAMARD:
        x = device_math.hadamard(x, R)
    code, byte = device_math.quantize(x, R, RULE)
    page, o = slot // OF.page_slots, slot % OF.page_slots
    j = tl.arange(0, 64)
    at = payload_at(o[:, None], j[None, :], OF)
    tl.store(payload_ptr + (page * payload_stride)[:, None] + at, device_math.pack(code, R), mask=live[:, None])
    c = tl.arange(0, 4)
    at = scale_at(o[:, None], c[None, :], OF)
    tl.store(scale_ptr + (page * scale_stride)[:, None] + at, byte.to(tl.uint8), mask=live[:, None])


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
    OF: tl.constexpr,
    RULE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1)
    live = slot >= 0
    d = tl.arange(0, 128)
    x = tl.load(k_ptr + (row * stride_k)[:, None] + d[None, :], mask=live[:, None], other=0.0).to(tl.float32)
    position = tl.load(positions_ptr + row, mask=live, other=0)
    put_keys(
        x,
        slot,
        live,
        position,
        weight_ptr,
        cos_ptr,
        sin_ptr,
        payload_ptr,
        scale_ptr,
        stride_angle,
        payload_stride,
        scale_stride,
        eps,
        R,
        HADAMARD,
        OF,
        RULE,
    )


@triton.jit
def _readback_kernel(
    payload_ptr,
    scale_ptr,
    slots_ptr,
    out_ptr,
    payload_stride,
    scale_stride,
    OF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row)
    page, o = slot // OF.page_slots, slot % OF.page_slots
    d = tl.arange(0, 128)
    byte = tl.load(payload_ptr + page * payload_stride + payload_at(o, d // 2, OF))
    code = (byte.to(tl.int32) >> (d % 2 * 4)) & 15
    at = scale_at(o, d // 32, OF)
    e = tl.load(scale_ptr + page * scale_stride + at).to(tl.int32)
    # Byte 0 is the subnormal 2**-127 and byte 255 is NaN; the others are float exponents.
    bits = tl.where(e == 0, 0x400000, tl.where(e == 255, 0x7FC00000, e << 23))
    tl.store(out_ptr + row * 128 + d, kv_codes.decode_e2m1(code) * bits.to(tl.float32, bitcast=True))


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
        OF=pool.spec.layout,
        RULE=pool.spec.convention,
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
            OF=pool.spec.layout,
            enable_fp_fusion=False,
        )
    return out
