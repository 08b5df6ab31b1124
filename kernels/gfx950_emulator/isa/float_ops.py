"""Lane-wise floating-point operations. docs/gfx950-emulator.md states the numerics of each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.isa.float_math import (
    fma16,
    fma32,
    fma64,
    from_bf16,
    maximum,
    maximum_ieee,
    median,
    minimum,
    minimum_ieee,
)
from gfx950_emulator.isa.values import Type
from gfx950_emulator.isa.vector_operation import define
from gfx950_emulator.machine.arrays import Array

F16, F32, F64, I32, U32, I16 = Type.F16, Type.F32, Type.F64, Type.I32, Type.U32, Type.I16
_DTYPE = {F16: np.float16, F32: np.float32, F64: np.float64}
_SUFFIX = {F16: "f16", F32: "f32", F64: "f64"}


def wide(a: Array) -> Array:
    """To float64, where one correctly rounded operation can be done."""
    return a.astype(np.float64)


def legacy_multiply(a: Array, b: Array) -> Array:
    """Product in which 0 times anything is 0."""
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


def scale_by_power(a: Array, exponent: Array) -> Array:
    """a * 2**exponent, rounded once to a's type."""
    return np.ldexp(wide(a), np.clip(exponent.astype(np.int32), -2200, 2200)).astype(a.dtype)


def fraction(a: Array) -> Array:
    """a - floor(a), at most the largest value below 1."""
    largest = np.nextafter(a.dtype.type(1), a.dtype.type(0))
    return np.asarray(np.minimum(a - np.floor(a), largest))


def exponent_of(a: Array) -> Array:
    """Exponent with mantissa in [0.5, 1); 0 for infinities and NaN."""
    return np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(np.int32)


def mantissa_of(a: Array) -> Array:
    """Mantissa in [0.5, 1); infinities and NaN unchanged."""
    return np.where(np.isfinite(a), np.frexp(a)[0], a).astype(a.dtype)


def sine_turns(a: Array) -> Array:
    """sin(2 pi a)."""
    return np.sin(2 * np.pi * np.fmod(wide(a), 1.0)).astype(a.dtype)


def cosine_turns(a: Array) -> Array:
    """cos(2 pi a)."""
    return np.cos(2 * np.pi * np.fmod(wide(a), 1.0)).astype(a.dtype)


def dot2_in_place(product: Callable[[Array, Array, int], Array]) -> Callable[[Array, Array, Array], Array]:
    """c, then the low product, then the high one, each addition rounded: the order of the v_dot2c forms."""
    return lambda a, b, c: (c + product(a, b, 0)) + product(a, b, 1)


def product_f16(a: Array, b: Array, part: int) -> Array:
    """float32 product of one pair of float16 halves."""
    return _half(a, part) * _half(b, part)


def product_bf16(a: Array, b: Array, part: int) -> Array:
    """float32 product of one pair of bfloat16 halves."""
    shift, mask = np.uint32(16 * part), np.uint32(0xFFFF)
    return from_bf16(a >> shift & mask) * from_bf16(b >> shift & mask)


def dot2(product: Callable[[Array, Array, int], Array]) -> Callable[[Array, Array, Array], Array]:
    """Both products, then c, each addition rounded."""
    return lambda a, b, c: (product(a, b, 0) + product(a, b, 1)) + c


def _half(a: Array, part: int) -> Array:
    bits = (a >> np.uint32(16 * part)).astype(np.uint16)
    return bits.view(np.float16).astype(np.float32)


def dot4_i8(a: Array, b: Array, c: Array) -> Array:
    """Four signed byte products plus c, modulo 2**32."""
    total = c.astype(np.int64)
    for position in range(4):
        shift = np.uint32(24 - 8 * position)
        x = (a << shift).view(np.int32) >> np.int32(24)
        y = (b << shift).view(np.int32) >> np.int32(24)
        total = total + x.astype(np.int64) * y.astype(np.int64)
    return (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def dot4_u8(a: Array, b: Array, c: Array) -> Array:
    """Four unsigned byte products plus c, modulo 2**32."""
    total = c
    for position in range(4):
        shift = np.uint32(8 * position)
        total = total + (a >> shift & np.uint32(255)) * (b >> shift & np.uint32(255))
    return total


for _kind in (F16, F32, F64):
    _s, _t = _SUFFIX[_kind], _DTYPE[_kind]
    define(f"v_add_{_s}", _kind, (_kind, _kind), np.add)
    define(f"v_sub_{_s}", _kind, (_kind, _kind), np.subtract)
    define(f"v_subrev_{_s}", _kind, (_kind, _kind), lambda a, b: b - a)
    define(f"v_mul_{_s}", _kind, (_kind, _kind), np.multiply)
    define(f"v_max_{_s}", _kind, (_kind, _kind), maximum)
    define(f"v_min_{_s}", _kind, (_kind, _kind), minimum)
    define(f"v_rndne_{_s}", _kind, (_kind,), np.rint)
    define(f"v_floor_{_s}", _kind, (_kind,), np.floor)
    define(f"v_ceil_{_s}", _kind, (_kind,), np.ceil)
    define(f"v_trunc_{_s}", _kind, (_kind,), np.trunc)
    define(f"v_fract_{_s}", _kind, (_kind,), fraction)
    define(f"v_ldexp_{_s}", _kind, (_kind, I16 if _kind is F16 else I32), scale_by_power)
    define(f"v_rcp_{_s}", _kind, (_kind,), lambda a, t=_t: (1.0 / wide(a)).astype(t))
    define(f"v_rsq_{_s}", _kind, (_kind,), lambda a, t=_t: (1.0 / np.sqrt(wide(a))).astype(t))
    define(f"v_sqrt_{_s}", _kind, (_kind,), lambda a, t=_t: np.sqrt(wide(a)).astype(t))
    define(f"v_frexp_mant_{_s}", _kind, (_kind,), mantissa_of)

for _kind in (F16, F32):
    _s, _t = _SUFFIX[_kind], _DTYPE[_kind]
    define(f"v_max3_{_s}", _kind, (_kind,) * 3, lambda a, b, c: maximum(maximum(a, b), c))
    define(f"v_min3_{_s}", _kind, (_kind,) * 3, lambda a, b, c: minimum(minimum(a, b), c))
    define(f"v_med3_{_s}", _kind, (_kind,) * 3, median)
    define(f"v_exp_{_s}", _kind, (_kind,), lambda a, t=_t: np.exp2(wide(a)).astype(t))
    define(f"v_log_{_s}", _kind, (_kind,), lambda a, t=_t: np.log2(wide(a)).astype(t))
    define(f"v_sin_{_s}", _kind, (_kind,), sine_turns)
    define(f"v_cos_{_s}", _kind, (_kind,), cosine_turns)

define("v_rcp_iflag_f32", F32, (F32,), lambda a: (1.0 / wide(a)).astype(np.float32))
define("v_exp_legacy_f32", F32, (F32,), lambda a: np.exp2(wide(a)).astype(np.float32))
define("v_log_legacy_f32", F32, (F32,), lambda a: np.log2(wide(a)).astype(np.float32))
define("v_maximum3_f32", F32, (F32,) * 3, lambda a, b, c: maximum_ieee(maximum_ieee(a, b), c))
define("v_minimum3_f32", F32, (F32,) * 3, lambda a, b, c: minimum_ieee(minimum_ieee(a, b), c))
define("v_mul_legacy_f32", F32, (F32, F32), legacy_multiply)
define("v_fma_f32", F32, (F32,) * 3, fma32)
define("v_fma_f16 v_fma_legacy_f16", F16, (F16,) * 3, fma16)
define("v_fma_f64", F64, (F64,) * 3, fma64)
define("v_fmac_f32", F32, (F32,) * 3, fma32, accumulates=True)
define("v_fmac_f16", F16, (F16,) * 3, fma16, accumulates=True)
define("v_fmac_f64", F64, (F64,) * 3, fma64, accumulates=True)
define("v_fmaak_f32 v_fmamk_f32", F32, (F32,) * 3, fma32)
define("v_fmaak_f16 v_fmamk_f16", F16, (F16,) * 3, fma16)
define("v_mad_f16 v_mad_legacy_f16", F16, (F16,) * 3, lambda a, b, c: a * b + c)
define("v_frexp_exp_i32_f32", I32, (F32,), exponent_of)
define("v_frexp_exp_i32_f64", I32, (F64,), exponent_of)
define("v_frexp_exp_i16_f16", I16, (F16,), lambda a: exponent_of(a).astype(np.int16))
define("v_dot2_f32_bf16", F32, (U32, U32, F32), dot2(product_bf16))
define("v_dot2_f32_f16", F32, (U32, U32, F32), dot2(product_f16))
define("v_dot2c_f32_bf16", F32, (U32, U32, F32), dot2_in_place(product_bf16), accumulates=True)
define("v_dot2c_f32_f16", F32, (U32, U32, F32), dot2_in_place(product_f16), accumulates=True)
define("v_dot4_i32_i8", I32, (U32, U32, U32), dot4_i8)
define("v_dot4c_i32_i8", I32, (U32, U32, U32), dot4_i8, accumulates=True)
define("v_dot4_u32_u8", U32, (U32, U32, U32), dot4_u8)
