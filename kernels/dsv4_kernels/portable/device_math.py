"""Arithmetic inside the portable kernels, operation for operation that of the reference backend.

Rows of 128 values are held as [R, 128]. Nothing here may be contracted into a fused multiply-add (launches say
`enable_fp_fusion=False`), divisions and square roots round to nearest: so codes and scales come out bit for bit.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

MAX_EXPONENT = tl.constexpr(0x7F800000)


@triton.jit
def pair_sums(x, R: tl.constexpr, HALF: tl.constexpr):
    """[R, 2 * HALF] to [R, HALF]: element i plus element i + HALF."""
    return tl.sum(tl.reshape(x, (R, 2, HALF)), axis=1)


@triton.jit
def tree_sum_128(x, R: tl.constexpr):
    """[R, 128] to [R], by halving."""
    x = pair_sums(x, R, 64)
    x = pair_sums(x, R, 32)
    x = pair_sums(x, R, 16)
    x = pair_sums(x, R, 8)
    x = pair_sums(x, R, 4)
    x = pair_sums(x, R, 2)
    return tl.reshape(pair_sums(x, R, 1), (R,))


@triton.jit
def rms_norm(x, weight, eps, R: tl.constexpr):
    mean = tree_sum_128(x * x, R) * (1.0 / 128)
    return (x * tl.div_rn(1.0, tl.sqrt_rn(mean + eps))[:, None]) * weight[None, :]


@triton.jit
def rope(x, cos, sin, R: tl.constexpr):
    """Rotates the pairs of [R, 128]; `cos`, `sin` [R, 64] hold 1 and 0 for the 32 pairs that stay."""
    even, odd = tl.split(tl.reshape(x, (R, 64, 2)))
    turned = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (R, 128))
    # A pair that stays is passed through, because x - y * 0 would lose the sign of a zero and spread a NaN.
    d = tl.arange(0, 128)
    return tl.where(d[None, :] >= 64, turned, x)


@triton.jit
def butterfly(x, R: tl.constexpr, DISTANCE: tl.constexpr):
    pairs = tl.reshape(x, (R, 64 // DISTANCE, 2, DISTANCE))
    a, b = tl.split(tl.permute(pairs, (0, 1, 3, 2)))
    return tl.reshape(tl.permute(tl.join(a + b, a - b), (0, 1, 3, 2)), (R, 128))


@triton.jit
def hadamard(x, R: tl.constexpr):
    x = butterfly(x, R, 1)
    x = butterfly(x, R, 2)
    x = butterfly(x, R, 4)
    x = butterfly(x, R, 8)
    x = butterfly(x, R, 16)
    x = butterfly(x, R, 32)
    x = butterfly(x, R, 64)
    return x * 0.08838834764831845


@triton.jit
def scale_byte(amax_bits, RULE: tl.constexpr):
    """Exponent byte of groups whose largest magnitude has these bits. Integers, so that NaN stays the largest."""
    floor_bits = tl.full(amax_bits.shape, RULE.floor, tl.float32).to(tl.int32, bitcast=True)
    if not RULE.floor_on_scale:
        amax_bits = tl.maximum(amax_bits, floor_bits)
    amax = amax_bits.to(tl.float32, bitcast=True)
    raw = amax * 0.1666666716337204 if RULE.reciprocal else tl.div_rn(amax, 6.0)
    bits = raw.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if RULE.floor_on_scale:
        bits = tl.maximum(bits, floor_bits)
    byte = (tl.minimum(bits, MAX_EXPONENT) + 0x7FFFFF) >> 23
    return tl.minimum(tl.maximum(byte, RULE.min_byte), RULE.max_byte)


@triton.jit
def encode(x, RULE: tl.constexpr):
    """int32 e2m1 codes: 7 less the thresholds that a magnitude stays below. NaN stays below none."""
    a = tl.abs(x)
    if RULE.ties == "even":
        below = (a < 0.75).to(tl.int32) + (a < 1.75).to(tl.int32) + (a < 3.5).to(tl.int32)
    else:
        below = (a <= 0.75).to(tl.int32) + (a <= 1.75).to(tl.int32) + (a <= 3.5).to(tl.int32)
    below += (a <= 0.25).to(tl.int32) + (a <= 1.25).to(tl.int32) + (a <= 2.5).to(tl.int32) + (a <= 5.0).to(tl.int32)
    code = 7 - below
    sign = (x.to(tl.int32, bitcast=True) >> 28) & 8
    return code | (sign if RULE.keep_negative_zero else tl.where(code == 0, 0, sign))


@triton.jit
def decode(code):
    """float32 value of int32 e2m1 codes 0..15."""
    m = code & 7
    value = tl.where(m < 4, m.to(tl.float32) * 0.5, tl.where(m == 7, 6.0, (m - 2).to(tl.float32)))
    # Not by a minus, which Triton 3.6 makes 0 - value: a zero would lose its sign.
    return (value.to(tl.int32, bitcast=True) | ((code & 8) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def quantize_once(x, R: tl.constexpr, RULE: tl.constexpr):
    """[R, 128] float32 to codes [R, 4, 32] and scale bytes [R, 4], both int32."""
    groups = tl.reshape(x, (R, 4, 32))
    amax_bits = tl.max(groups.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=2)
    byte = scale_byte(amax_bits, RULE)
    scale = (byte << 23).to(tl.float32, bitcast=True)
    return encode(tl.div_rn(groups, tl.expand_dims(scale, 2)), RULE), byte


@triton.jit
def quantize(x, R: tl.constexpr, RULE: tl.constexpr):
    """`quantize_once`, after a round trip by the rule of the first stage where there is one."""
    if RULE.fake_quantize:
        FIRST: tl.constexpr = RULE.first_stage
        code, byte = quantize_once(x, R, FIRST)
        scale = (byte << 23).to(tl.float32, bitcast=True)
        x = tl.reshape(decode(code) * tl.expand_dims(scale, 2), (R, 128))
    return quantize_once(x, R, RULE)


@triton.jit
def pack(code, R: tl.constexpr):
    """uint8 [R, 64] of codes [R, 4, 32], even element in the low nibble."""
    low, high = tl.split(tl.reshape(code, (R, 64, 2)))
    return (low | (high << 4)).to(tl.uint8)


@triton.jit
def rope_angles(cos_ptr, sin_ptr, position, stride, live):
    """cos and sin [R, 64] for all 64 pairs at int64 `position` [R]; the first 32 pairs do not turn."""
    pair = tl.arange(0, 64)
    at = position[:, None] * stride + (pair - 32)[None, :]
    mask = (pair >= 32)[None, :] & live[:, None]
    cos = tl.load(cos_ptr + at, mask=mask, other=1.0).to(tl.float32)
    return cos, tl.load(sin_ptr + at, mask=mask, other=0.0).to(tl.float32)
