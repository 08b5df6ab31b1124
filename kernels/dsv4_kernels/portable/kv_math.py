"""Norm, RoPE and rounding of main KV rows inside the portable kernels: bit for bit those of the reference.

NATIVE says whose conversions of several values at once there are: SM89, NVIDIA's from there on, or GFX950. Without, as
in the interpreter, it is 0, and integers do the same.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.portable import kv_gfx950, kv_sm89

SM89, GFX950 = tl.constexpr(1), tl.constexpr(2)
INFINITY = tl.constexpr(0x7F800000)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _halved(s, R: tl.constexpr, N: tl.constexpr):
    """[R, N] to [R, N / 2]: neighbours added."""
    return tl.sum(tl.reshape(s, (R, N // 2, 2)), axis=2)


@triton.jit
def inverse_rms(even, odd, eps, R: tl.constexpr):
    """1 / rms [R] of rows given by even and odd values [R, 256]; neighbours are added first, as a thread has them."""
    s = _halved(even * even + odd * odd, R, 256)
    s = _halved(_halved(_halved(s, R, 128), R, 64), R, 32)
    s = _halved(_halved(_halved(s, R, 16), R, 8), R, 4)
    s = tl.reshape(_halved(s, R, 2), (R,))
    return tl.div_rn(1.0, tl.sqrt_rn(s * (1.0 / 512) + eps))


@triton.jit
def bfloat16_bits(x, NATIVE: tl.constexpr):
    """int32 whose low half are the bits of the bfloat16 nearest to float32 `x`; every NaN is 0x7FC0."""
    bits = x.to(tl.int32, bitcast=True)
    if NATIVE:
        rounded = x.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
    else:
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & MAGNITUDE) > INFINITY, 0x7FC0, rounded)


@triton.jit
def round_bfloat16(x, NATIVE: tl.constexpr):
    """float32 values rounded to bfloat16; NaN stays one."""
    if NATIVE:
        return x.to(tl.bfloat16).to(tl.float32)
    return (bfloat16_bits(x, NATIVE) << 16).to(tl.float32, bitcast=True)


@triton.jit
def bfloat16_pairs(even, odd, NATIVE: tl.constexpr):
    """int32 words whose low halves are the bfloat16 of `even`, and whose high halves are those of `odd`."""
    if NATIVE == SM89:
        return kv_sm89.bfloat16_pairs(even, odd)
    if NATIVE == GFX950:
        return kv_gfx950.bfloat16_pairs(even, odd)
    return (bfloat16_bits(even, NATIVE) & 0xFFFF) | (bfloat16_bits(odd, NATIVE) << 16)


@triton.jit
def exact_pairs(even, odd, NATIVE: tl.constexpr):
    """As `bfloat16_pairs`; every NaN is 0x7FC0."""
    return (bfloat16_bits(even, NATIVE) & 0xFFFF) | (bfloat16_bits(odd, NATIVE) << 16)


@triton.jit
def canonical_pairs(even, odd):
    """As `exact_pairs`, of values that are those of bfloat16 already."""
    low = tl.where(even == even, even.to(tl.int32, bitcast=True), 0x7FC00000)
    high = tl.where(odd == odd, odd.to(tl.int32, bitcast=True), 0x7FC00000)
    return ((low >> 16) & 0xFFFF) | (high & -65536)


@triton.jit
def of_pairs(words):
    """float32 values of the low and the high bfloat16 of int32 words."""
    return (words << 16).to(tl.float32, bitcast=True), (words & -65536).to(tl.float32, bitcast=True)


@triton.jit
def store_rounded(base, at, x, live, NATIVE: tl.constexpr):
    """float32 `x` to `base + at` in the pointer's type; bfloat16 as bits, because the interpreter's own cast is off."""
    if base.dtype.element_ty == tl.bfloat16 and not NATIVE:
        tl.store(base.to(tl.pointer_type(tl.int16)) + at, bfloat16_bits(x, NATIVE).to(tl.int16), mask=live)
    else:
        tl.store(base + at, x.to(base.dtype.element_ty), mask=live)
