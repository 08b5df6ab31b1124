"""Lane-wise conversions between integers and float16, bfloat16, float32, float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.isa.float_math import from_bf16, to_bf16, to_integer
from gfx950_emulator.isa.values import Type
from gfx950_emulator.isa.vector_operation import define
from gfx950_emulator.machine.arrays import Array

F16, F32, F64, I32, U32, I16, U16 = Type.F16, Type.F32, Type.F64, Type.I32, Type.U32, Type.I16, Type.U16


def pack16(low: Array, high: Array) -> Array:
    """Two 16-bit patterns into uint32."""
    low, high = np.asarray(low), np.asarray(high)
    return low.view(np.uint16).astype(np.uint32) | high.view(np.uint16).astype(np.uint32) << np.uint32(16)


def toward_zero_f16(a: Array) -> Array:
    """float32 to float16, rounded toward zero."""
    nearest = a.astype(np.float16)
    too_far = np.abs(nearest.astype(np.float64)) > np.abs(a.astype(np.float64))
    stepped = np.nextafter(nearest, np.float16(0))
    return np.where(too_far & np.isfinite(a), stepped, nearest).astype(np.float16)


def normalised(a: Array, low: float, high: float, scale: float, dtype: str) -> Array:
    """Clamp to [low, high], scale, round to nearest even integer; NaN becomes 0."""
    clipped = np.clip(np.where(np.isnan(a), 0, a.astype(np.float64)), low, high)
    return np.rint(clipped * scale).astype(dtype)


define("v_cvt_f32_i32", F32, (I32,), lambda a: a.astype(np.float32))
define("v_cvt_f32_u32", F32, (U32,), lambda a: a.astype(np.float32))
define("v_cvt_f64_i32", F64, (I32,), lambda a: a.astype(np.float64))
define("v_cvt_f64_u32", F64, (U32,), lambda a: a.astype(np.float64))
define("v_cvt_i32_f32", I32, (F32,), lambda a: to_integer(a, -(2**31), 2**31 - 1, "i4"))
define("v_cvt_u32_f32", U32, (F32,), lambda a: to_integer(a, 0, 2**32 - 1, "u4"))
define("v_cvt_i32_f64", I32, (F64,), lambda a: to_integer(a, -(2**31), 2**31 - 1, "i4"))
define("v_cvt_u32_f64", U32, (F64,), lambda a: to_integer(a, 0, 2**32 - 1, "u4"))
define("v_cvt_i16_f16", I16, (F16,), lambda a: to_integer(a, -(2**15), 2**15 - 1, "i2"))
define("v_cvt_u16_f16", U16, (F16,), lambda a: to_integer(a, 0, 2**16 - 1, "u2"))
define("v_cvt_f16_i16", F16, (I16,), lambda a: a.astype(np.float16))
define("v_cvt_f16_u16", F16, (U16,), lambda a: a.astype(np.float16))
define("v_cvt_f32_f16", F32, (F16,), lambda a: a.astype(np.float32))
define("v_cvt_f64_f32", F64, (F32,), lambda a: a.astype(np.float64))
define("v_cvt_f32_f64", F32, (F64,), lambda a: a.astype(np.float32))
define("v_cvt_f32_bf16", F32, (U16,), from_bf16)
define("v_cvt_rpi_i32_f32", I32, (F32,), lambda a: to_integer(np.floor(a + 0.5), -(2**31), 2**31 - 1, "i4"))
define("v_cvt_flr_i32_f32", I32, (F32,), lambda a: to_integer(np.floor(a), -(2**31), 2**31 - 1, "i4"))
define("v_cvt_pk_bf16_f32", U32, (F32, F32), lambda a, b: to_bf16(a) | to_bf16(b) << np.uint32(16))
define("v_cvt_pk_f16_f32", U32, (F32, F32), lambda a, b: pack16(a.astype(np.float16), b.astype(np.float16)))
define("v_cvt_pkrtz_f16_f32", U32, (F32, F32), lambda a, b: pack16(toward_zero_f16(a), toward_zero_f16(b)))
define(
    "v_cvt_pknorm_i16_f32",
    U32,
    (F32, F32),
    lambda a, b: pack16(normalised(a, -1, 1, 32767, "i2"), normalised(b, -1, 1, 32767, "i2")),
)
define(
    "v_cvt_pknorm_u16_f32",
    U32,
    (F32, F32),
    lambda a, b: pack16(normalised(a, 0, 1, 65535, "u2"), normalised(b, 0, 1, 65535, "u2")),
)
define(
    "v_cvt_pk_u16_u32",
    U32,
    (U32, U32),
    lambda a, b: np.minimum(a, np.uint32(65535)) | np.minimum(b, np.uint32(65535)) << np.uint32(16),
)
define(
    "v_cvt_pk_i16_i32",
    U32,
    (I32, I32),
    lambda a, b: pack16(np.clip(a, -32768, 32767).astype(np.int16), np.clip(b, -32768, 32767).astype(np.int16)),
)


def _byte_converter(byte: int) -> Callable[[Array], Array]:
    shift = np.uint32(8 * byte)
    return lambda a: (a >> shift & np.uint32(255)).astype(np.float32)


for _byte in range(4):
    define(f"v_cvt_f32_ubyte{_byte}", F32, (U32,), _byte_converter(_byte))
