"""Codes and scales of main KV rows inside the portable kernels: bit for bit those of the reference.

Values come by twos, the even ones and the odd ones of a row, as e2m1 stores them. NATIVE is as in `kv_math`.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.portable import kv_gfx950, kv_sm89
from dsv4_kernels.portable.kv_math import GFX950, INFINITY, MAGNITUDE, SM89


@triton.jit
def encode_e4m3(x):
    """int32 codes, to nearest even, of |x| <= 448."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - 960
    # Below 2^-6 codes are multiples of 2^-9, which is the last place of 2^14.
    moved = magnitude.to(tl.float32, bitcast=True) + 16384.0
    code = tl.where(magnitude < 0x3C800000, moved.to(tl.int32, bitcast=True) - 0x46800000, normal)
    return code | ((bits >> 24) & 0x80)


@triton.jit
def encode_scale(x, NATIVE: tl.constexpr):
    """int32 e4m3 codes of 0 <= x <= 448."""
    if NATIVE:
        return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True).to(tl.int32)
    return encode_e4m3(x)


@triton.jit
def decode_e4m3(code, NATIVE: tl.constexpr):
    """float32 of uint8 codes."""
    if NATIVE:
        return code.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    wide = code.to(tl.int32)
    # Under float32's exponent the code is the value times 2^-120, denormals included.
    value = ((wide & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
    bits = tl.where((wide & 0x7F) == 0x7F, 0x7FC00000, value.to(tl.int32, bitcast=True)) | ((wide & 0x80) << 24)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def decode_e8m0(byte):
    """float32 of int32 bytes: 0 is the subnormal 2^-127, 255 is NaN."""
    return tl.where(byte == 0, 0x400000, tl.where(byte == 255, 0x7FC00000, byte << 23)).to(tl.float32, bitcast=True)


@triton.jit
def encode_e2m1(x):
    """int32 codes, to nearest even, saturating; signs stay."""
    a = tl.minimum(tl.abs(x), 6.0)
    exponent = tl.maximum(a.to(tl.int32, bitcast=True), 0x3F800000) & INFINITY
    # Of magic, 2^22 times the power of two at or below `a`, the last place is the distance of codes there.
    magic = (exponent + 0x0B000000).to(tl.float32, bitcast=True)
    steps = (a + magic).to(tl.int32, bitcast=True) - (exponent + 0x0B000000)
    return (steps + ((exponent >> 22) - 254)) | ((x.to(tl.int32, bitcast=True) >> 28) & 8)


@triton.jit
def decode_e2m1(code):
    """float32 of int32 codes 0..15; higher bits are ignored."""
    magnitude = ((code & 7) << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37
    return (magnitude.to(tl.int32, bitcast=True) | ((code & 8) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _amax(even, odd, R: tl.constexpr, N: tl.constexpr, HALF: tl.constexpr, NATIVE: tl.constexpr):
    """int32 bits [R, N / HALF] of the largest magnitude of groups of HALF pairs of [R, N]; NaN is larger than all."""
    if NATIVE:
        larger = tl.maximum(tl.abs(even), tl.abs(odd), propagate_nan=tl.PropagateNan.ALL)
        return tl.reduce(tl.reshape(larger, (R, N // HALF, HALF)), 2, _larger).to(tl.int32, bitcast=True)
    a, b = even.to(tl.int32, bitcast=True) & MAGNITUDE, odd.to(tl.int32, bitcast=True) & MAGNITUDE
    return tl.max(tl.reshape(tl.maximum(a, b), (R, N // HALF, HALF)), axis=2)


@triton.jit
def _spread(x, R: tl.constexpr, GROUPS: tl.constexpr, N: tl.constexpr):
    """[R, GROUPS] to [R, N], every value for its whole group."""
    return tl.reshape(tl.broadcast_to(tl.expand_dims(x, 2), (R, GROUPS, N // GROUPS)), (R, N))


@triton.jit
def _twos(x, R: tl.constexpr, N: tl.constexpr):
    """[R, N] to its even and its odd places, [R, N / 2]."""
    return tl.split(tl.reshape(x, (R, N // 2, 2)))


@triton.jit
def quantize_e4m3(even, odd, R: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr, NATIVE: tl.constexpr):
    """Values [R, N] by twos to int32 words of four e4m3 codes [R, N / 2] and int32 e8m0 bytes [R, 2 N / GROUP]."""
    GROUPS: tl.constexpr = 2 * N // GROUP
    amax = _amax(even, odd, R, N, GROUP // 2, NATIVE)
    # 448 = 1.75 * 2^8: the exponent of the ceiling moves up when the mantissa exceeds .75.
    byte = tl.maximum((amax >> 23) - 8 + ((amax & 0x7FFFFF) > 0x600000).to(tl.int32), 114)
    poisoned = amax >= INFINITY
    inverse = _spread(((254 - byte) << 23).to(tl.float32, bitcast=True), R, GROUPS, N)
    keep = _spread(tl.where(poisoned, 0, -1), R, GROUPS, N // 2)
    e0, e1 = _twos(even * inverse, R, N)
    o0, o1 = _twos(odd * inverse, R, N)
    if NATIVE == SM89:
        words = kv_sm89.four_e4m3(e0, o0, e1, o1, keep)
    elif NATIVE == GFX950:
        words = kv_gfx950.four_e4m3(e0, o0, e1, o1, keep)
    else:
        words = encode_e4m3(e0) | (encode_e4m3(o0) << 8) | (encode_e4m3(e1) << 16) | (encode_e4m3(o1) << 24)
        words &= keep
    return words, tl.where(poisoned, 255, byte)


@triton.jit
def _sixth(amax, NATIVE: tl.constexpr):
    """amax / 6, which decides the scale. Six times a halfway place of e4m3 has at most 8 bits: see `kv_sm89`."""
    if NATIVE == SM89:
        guess = amax * 0.16666667163372040
        return tl.fma(tl.fma(-guess, 6.0, amax), 0.16666667163372040, guess)
    return tl.div_rn(amax, 6.0)


@triton.jit
def quantize_e2m1(even, odd, R: tl.constexpr, N: tl.constexpr, NARROW: tl.constexpr, NATIVE: tl.constexpr):
    """Values [R, N] by twos to uint8 pairs of e2m1 codes [R, N] and int32 e4m3 scales [R, N / 8].

    NARROW values on GFX950 become int32 words of eight codes, [R, N / 4].

    NARROW: the values are those of bfloat16. Then a quotient is a threshold of e2m1 or at least 2^-8 of it away, since
    a threshold times a scale has 7 bits: a product with the reciprocal, rounded to float16, is on the right side.
    """
    amax = _amax(even, odd, R, N, 8, NATIVE)
    poisoned = amax >= INFINITY
    known = tl.where(poisoned, 0, amax).to(tl.float32, bitcast=True)
    byte = encode_scale(tl.minimum(tl.maximum(_sixth(known, NATIVE), 0.001953125), 448.0), NATIVE)
    scale = decode_e4m3(byte, NATIVE)
    keep = _spread(tl.where(poisoned, 0, -1), R, N // 8, N)
    if NARROW and NATIVE == SM89:
        inverse = _spread(1.0 / (scale * 16384.0), R, N // 8, N)
        pairs = kv_sm89.pairs_of_bfloat16(even * inverse, odd * inverse, keep)
    elif NARROW and NATIVE == GFX950:
        inverse = _spread(1.0 / scale, R, N // 8, N)
        p02, p13 = _twos(kv_gfx950.float16_pairs(even * inverse, odd * inverse), R, N)
        p0, p2 = _twos(p02, R, N // 2)
        p1, p3 = _twos(p13, R, N // 2)
        pairs = kv_gfx950.eight_e2m1(p0, p1, p2, p3, _spread(tl.where(poisoned, 0, -1), R, N // 8, N // 4))
    elif NATIVE == SM89:
        scale64 = scale * 64.0
        inverse, scale64 = _spread(1.0 / scale64, R, N // 8, N), _spread(scale64, R, N // 8, N)
        even, odd = kv_sm89.rounded_to_e2m1(even, scale64, inverse), kv_sm89.rounded_to_e2m1(odd, scale64, inverse)
        pairs = kv_sm89.pairs_of_float32(even, odd) & keep.to(tl.uint8)
    else:
        divisor = _spread(scale, R, N // 8, N)
        low, high = encode_e2m1(tl.div_rn(even, divisor)), encode_e2m1(tl.div_rn(odd, divisor))
        pairs = ((low | (high << 4)) & keep).to(tl.uint8)
    return pairs, tl.where(poisoned, 127, byte)
