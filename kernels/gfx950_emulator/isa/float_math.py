"""Floating-point building blocks: exact fused multiply-add, minimum and maximum, conversions with saturation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from gfx950_emulator.machine.arrays import U32, Array, f32_bits


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """float64 sum and exactly what it lost."""
    total = a + b
    recovered = total - a
    return total, (a - (total - recovered)) + (b - recovered)


def add_to_odd(a: Array, b: Array) -> Array:
    """float64 sum rounded to odd: a later rounding to fewer bits is then the only one that counts."""
    total, error = two_sum(np.asarray(a), np.asarray(b))
    bits = np.ascontiguousarray(total).view(np.int64)
    fix = (error != 0) & ((bits & 1) == 0) & np.isfinite(total)
    if fix.any():
        away = (error > 0) == (total > 0)
        bits = np.where(fix, bits + np.where(away, 1, -1), bits)
    return bits.view(np.float64)


def fma_to_odd(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float64, rounded to odd, for float32 or float16 inputs (their products are exact)."""
    return add_to_odd(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64))


def fma32(a: Array, b: Array, c: Array) -> Array:
    """float32 fused multiply-add, rounded once."""
    return fma_to_odd(a, b, c).astype(np.float32)


def fma16(a: Array, b: Array, c: Array) -> Array:
    """float16 fused multiply-add, rounded once."""
    return fma_to_odd(a, b, c).astype(np.float16)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """float64 fused multiply-add, rounded once (Boldo and Melquiond); by fractions where the product's parts
    would under- or overflow."""
    product = a * b
    splitter = 134217729.0
    a_high, b_high = a * splitter - (a * splitter - a), b * splitter - (b * splitter - b)
    a_low, b_low = a - a_high, b - b_high
    low = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    tail, tail_error = two_sum(c, low)
    head, head_error = two_sum(product, tail)
    exact = head + add_to_odd(tail_error, head_error)
    # A sum of exactly zero takes its sign from product and addend, which the error terms have lost.
    result = np.where(np.isfinite(exact) & (exact != 0), exact, product + c)
    return _repair_extremes(result, *np.broadcast_arrays(a, b, c))


def _repair_extremes(result: Array, a: Array, b: Array, c: Array) -> Array:
    """Recompute exactly the elements whose operands are beyond the range of error-free transformations."""
    with np.errstate(all="ignore"):
        power = np.frexp(a)[1].astype(np.int64) + np.frexp(b)[1]
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c) & (a != 0) & (b != 0)
    extreme = (power < -900) | (power > 1000) | (np.maximum(np.abs(a), np.abs(b)) > 2.0**990) | (np.abs(c) > 2.0**990)
    # A finite product may overflow on its way to an infinite addend.
    result = np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(c), c, result)
    for position in np.argwhere(finite & extreme):
        at = tuple(position)
        result[at] = _fused_fraction(float(a[at]), float(b[at]), float(c[at]))
    return result


def _fused_fraction(a: float, b: float, c: float) -> float:
    """Fused multiply-add of finite numbers with a product that is not zero."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        rounded = float(exact)
    except OverflowError:
        rounded = math.inf
    return math.copysign(rounded, -1.0 if exact < 0 else 1.0)


def maximum(a: Array, b: Array) -> Array:
    """maxNum: a number wins over a quiet NaN, +0 over -0; a signalling NaN gives NaN (IEEE_MODE is set)."""
    return _signalling(_signed_zero(np.fmax(a, b), a, b, keep_negative=False), a, b)


def minimum(a: Array, b: Array) -> Array:
    """minNum: a number wins over a quiet NaN, -0 over +0; a signalling NaN gives NaN (IEEE_MODE is set)."""
    return _signalling(_signed_zero(np.fmin(a, b), a, b, keep_negative=True), a, b)


def _signalling(result: Array, a: Array, b: Array) -> Array:
    for values in (a, b):
        nan = np.isnan(values)
        if nan.any():
            result = np.where(nan & ~_quiet(values), result.dtype.type(np.nan), result)
    return result


def _quiet(values: Array) -> Array:
    """Whether the quiet bit of NaN patterns is set."""
    bits, quiet = {2: ("u2", 9), 4: ("u4", 22), 8: ("u8", 51)}[values.dtype.itemsize]
    return np.asarray((np.ascontiguousarray(values).view(bits) >> np.array(quiet, bits) & np.array(1, bits)) != 0)


def _signed_zero(result: Array, a: Array, b: Array, keep_negative: bool) -> Array:
    zeros = (a == 0) & (b == 0)
    if not zeros.any():
        return result
    negative = np.signbit(a) | np.signbit(b) if keep_negative else np.signbit(a) & np.signbit(b)
    zero = np.where(negative, -0.0, 0.0).astype(result.dtype)
    return np.where(zeros, zero, result)


def maximum_ieee(a: Array, b: Array) -> Array:
    """IEEE 754-2019 maximum: NaN wins."""
    return np.where(np.isnan(a) | np.isnan(b), np.maximum(a, b), maximum(a, b)).astype(a.dtype)


def minimum_ieee(a: Array, b: Array) -> Array:
    """IEEE 754-2019 minimum: NaN wins."""
    return np.where(np.isnan(a) | np.isnan(b), np.minimum(a, b), minimum(a, b)).astype(a.dtype)


def median(a: Array, b: Array, c: Array) -> Array:
    """Middle of three; the minimum when one is NaN."""
    middle = maximum(minimum(a, b), minimum(maximum(a, b), c))
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, minimum(minimum(a, b), c), middle).astype(np.asarray(a).dtype)


def to_integer(values: Array, low: int, high: int, dtype: str) -> Array:
    """Truncate to an integer, saturating; NaN becomes 0."""
    truncated = np.trunc(values.astype(np.float64))
    return np.where(np.isnan(truncated), 0, np.clip(truncated, low, high)).astype(np.int64).astype(dtype)


def to_bf16(values: Array) -> U32:
    """float32 to bfloat16 bits (in uint32), round to nearest even; NaN stays NaN."""
    bits = f32_bits(values)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    rounded = np.where(np.isnan(values), bits | np.uint32(0x400000), rounded)
    return rounded >> np.uint32(16)


def from_bf16(bits: Array) -> Array:
    """bfloat16 bits (any unsigned type) to float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
