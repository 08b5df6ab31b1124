"""Lane-wise integer and bit operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.isa.values import Type
from gfx950_emulator.isa.vector_operation import define
from gfx950_emulator.machine.arrays import LANE, Array

U32, I32, U16, I16, U64, I64 = Type.U32, Type.I32, Type.U16, Type.I16, Type.U64, Type.I64
ONE = np.uint32(1)


def low5(shift: Array) -> Array:
    """Shift amounts modulo 32."""
    return shift & np.uint32(31)


def reverse_bits(a: Array) -> Array:
    """Bit reversal of uint32."""
    for width, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        w, m = np.uint32(width), np.uint32(mask)
        a = (a >> w & m) | (a & m) << w
    return a >> np.uint32(16) | a << np.uint32(16)


def count_ones(a: Array) -> Array:
    """Number of set bits of uint32."""
    return np.bitwise_count(a).astype(np.uint32)


def leading_zeros(a: Array) -> Array:
    """Zeros above the highest set bit; 0xffffffff for 0."""
    position = 31 - np.frexp(np.maximum(a, ONE).astype(np.float64))[1] + 1
    return np.where(a == 0, 0xFFFFFFFF, position).astype(np.uint32)


def trailing_zeros(a: Array) -> Array:
    """Zeros below the lowest set bit; 0xffffffff for 0."""
    lowest = a & (~a + ONE)
    return np.where(a == 0, 0xFFFFFFFF, count_ones(lowest - ONE)).astype(np.uint32)


def leading_sign_bits(a: Array) -> Array:
    """Bits equal to the sign before the first different one; 0xffffffff for 0 and -1."""
    signed = a.view(np.int32)
    return leading_zeros(np.where(signed < 0, ~a, a))


def extract_unsigned(a: Array, offset: Array, width: Array) -> Array:
    """Bit field, zero-extended."""
    return a >> low5(offset) & ((ONE << low5(width)) - ONE)


def extract_signed(a: Array, offset: Array, width: Array) -> Array:
    """Bit field, sign-extended; beyond bit 31 lies the sign, width 0 gives 0."""
    shifted = a.view(np.int32) >> low5(offset).astype(np.int32)
    up = np.uint32(32) - low5(width)
    field = (shifted.view(np.uint32) << low5(up)).view(np.int32) >> low5(up).astype(np.int32)
    return np.where(low5(width) == 0, np.int32(0), field)


def permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    """v_perm_b32: pick bytes of {a, b}; selectors 8..11 replicate signs, 12 gives 0, above 12 gives 0xff."""
    source = a.astype(np.uint64) << np.uint64(32) | b.astype(np.uint64)
    result: Array = np.zeros(np.broadcast_shapes(a.shape, b.shape, selector.shape), np.uint32)
    for position in range(4):
        code = selector >> np.uint32(8 * position) & np.uint32(255)
        byte = source >> ((code & np.uint32(7)).astype(np.uint64) * np.uint64(8)) & np.uint64(255)
        for special, bit in ((8, 15), (9, 31), (10, 47), (11, 63)):
            byte = np.where(code == special, (source >> np.uint64(bit) & np.uint64(1)) * np.uint64(255), byte)
        byte = np.where(code == 12, np.uint64(0), np.where(code > 12, np.uint64(255), byte))
        result = result | byte.astype(np.uint32) << np.uint32(8 * position)
    return result


def signed24(a: Array) -> Array:
    """Low 24 bits, sign-extended, as int64."""
    return ((a << np.uint32(8)).view(np.int32) >> np.int32(8)).astype(np.int64)


def unsigned24(a: Array) -> Array:
    """Low 24 bits as uint64."""
    return (a & np.uint32(0xFFFFFF)).astype(np.uint64)


def low32(a: Array) -> Array:
    """Low half of a 64-bit result."""
    return (a.astype(np.int64).view(np.uint64) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def high_product(a: Array, b: Array, wide: type[np.int64] | type[np.uint64]) -> Array:
    """Upper 32 bits of a product."""
    return low32((a.astype(wide) * b.astype(wide)) >> wide(32))


def funnel(a: Array, b: Array, shift: Array) -> Array:
    """Low 32 bits of {a, b} >> shift."""
    return ((a.astype(np.uint64) << np.uint64(32) | b) >> shift.astype(np.uint64)).astype(np.uint32)


def byte_differences(a: Array, b: Array, mask_zero: bool = False) -> Array:
    """Sum over four bytes of |a - b|; with mask_zero, bytes of b that are 0 do not count."""
    total: Array = np.zeros(np.broadcast_shapes(a.shape, b.shape), np.uint32)
    for position in range(4):
        shift = np.uint32(8 * position)
        x = (a >> shift & np.uint32(255)).astype(np.int32)
        y = (b >> shift & np.uint32(255)).astype(np.int32)
        difference = np.abs(x - y).astype(np.uint32)
        total = total + (np.where(y == 0, np.uint32(0), difference) if mask_zero else difference)
    return total


def pseudo_random(a: Array) -> Array:
    """v_prng_b32: one step of the linear feedback shift register."""
    return (a << ONE) ^ np.where(a >> np.uint32(31) != 0, np.uint32(197), np.uint32(0))


def saturate_byte(a: Array) -> Array:
    """int32 to int8 with saturation, as the low byte of uint32."""
    return np.clip(a, -128, 127).astype(np.int32).view(np.uint32) & np.uint32(255)


def saturate_unsigned_byte(a: Array) -> Array:
    """int32 to uint8 with saturation."""
    return np.clip(a, 0, 255).astype(np.uint32)


_LOW_LANES = np.where(LANE >= 32, 0xFFFFFFFF, (1 << np.minimum(LANE, 31)) - 1).astype(np.uint32)
_HIGH_LANES = np.where(LANE < 32, 0, (1 << np.maximum(LANE - 32, 0)) - 1).astype(np.uint32)

define("v_mov_b32 v_accvgpr_write_b32 v_accvgpr_read_b32 v_accvgpr_mov_b32", U32, (U32,), lambda a: a)
define("v_mov_b64", U64, (U64,), lambda a: a)
define("v_not_b32", U32, (U32,), lambda a: ~a)
define("v_bfrev_b32", U32, (U32,), reverse_bits)
define("v_ffbh_u32", U32, (U32,), leading_zeros)
define("v_ffbh_i32", U32, (U32,), leading_sign_bits)
define("v_ffbl_b32", U32, (U32,), trailing_zeros)
define("v_prng_b32", U32, (U32,), pseudo_random)
define("v_and_b32", U32, (U32, U32), np.bitwise_and)
define("v_or_b32", U32, (U32, U32), np.bitwise_or)
define("v_xor_b32", U32, (U32, U32), np.bitwise_xor)
define("v_xnor_b32", U32, (U32, U32), lambda a, b: ~(a ^ b))
define("v_add_u32 v_add_i32", U32, (U32, U32), np.add)
define("v_sub_u32 v_sub_i32", U32, (U32, U32), np.subtract)
define("v_subrev_u32", U32, (U32, U32), lambda a, b: b - a)
define("v_lshlrev_b32", U32, (U32, U32), lambda a, b: b << low5(a))
define("v_lshrrev_b32", U32, (U32, U32), lambda a, b: b >> low5(a))
define("v_ashrrev_i32", I32, (U32, I32), lambda a, b: b >> low5(a).astype(np.int32))
define("v_mul_lo_u32", U32, (U32, U32), np.multiply)
define("v_mul_hi_u32", U32, (U32, U32), lambda a, b: high_product(a, b, np.uint64))
define("v_mul_hi_i32", U32, (I32, I32), lambda a, b: high_product(a, b, np.int64))
define("v_mul_u32_u24", U32, (U32, U32), lambda a, b: (unsigned24(a) * unsigned24(b)).astype(np.uint32))
define("v_mul_hi_u32_u24", U32, (U32, U32), lambda a, b: low32(unsigned24(a) * unsigned24(b) >> np.uint64(32)))
define("v_mul_i32_i24", U32, (U32, U32), lambda a, b: low32(signed24(a) * signed24(b)))
define("v_mul_hi_i32_i24", U32, (U32, U32), lambda a, b: low32(signed24(a) * signed24(b) >> np.int64(32)))
define("v_mad_u32_u24", U32, (U32, U32, U32), lambda a, b, c: low32(unsigned24(a) * unsigned24(b)) + c)
define("v_mad_i32_i24", U32, (U32, U32, U32), lambda a, b, c: low32(signed24(a) * signed24(b)) + c)
define("v_add3_u32", U32, (U32, U32, U32), lambda a, b, c: a + b + c)
define("v_xad_u32", U32, (U32, U32, U32), lambda a, b, c: (a ^ b) + c)
define("v_lshl_add_u32", U32, (U32, U32, U32), lambda a, b, c: (a << low5(b)) + c)
define("v_add_lshl_u32", U32, (U32, U32, U32), lambda a, b, c: (a + b) << low5(c))
define("v_lshl_or_b32", U32, (U32, U32, U32), lambda a, b, c: a << low5(b) | c)
define("v_and_or_b32", U32, (U32, U32, U32), lambda a, b, c: (a & b) | c)
define("v_or3_b32", U32, (U32, U32, U32), lambda a, b, c: a | b | c)
define("v_bfe_u32", U32, (U32, U32, U32), extract_unsigned)
define("v_bfe_i32", I32, (U32, U32, U32), extract_signed)
define("v_bfi_b32", U32, (U32, U32, U32), lambda a, b, c: (a & b) | (~a & c))
define("v_bfm_b32", U32, (U32, U32), lambda a, b: ((ONE << low5(a)) - ONE) << low5(b))
define("v_alignbit_b32", U32, (U32, U32, U32), lambda a, b, c: funnel(a, b, low5(c)))
define("v_alignbyte_b32", U32, (U32, U32, U32), lambda a, b, c: funnel(a, b, (c & np.uint32(3)) * np.uint32(8)))
define("v_perm_b32", U32, (U32, U32, U32), permute_bytes)
define("v_bcnt_u32_b32", U32, (U32, U32), lambda a, b: count_ones(a) + b)
define("v_mbcnt_lo_u32_b32", U32, (U32, U32), lambda a, b: b + count_ones(a & _LOW_LANES))
define("v_mbcnt_hi_u32_b32", U32, (U32, U32), lambda a, b: b + count_ones(a & _HIGH_LANES))
define("v_sad_u8", U32, (U32, U32, U32), lambda a, b, c: byte_differences(a, b) + c)
define("v_msad_u8", U32, (U32, U32, U32), lambda a, b, c: byte_differences(a, b, mask_zero=True) + c)
define("v_sad_u32", U32, (U32, U32, U32), lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c)
define(
    "v_ashr_pk_i8_i32",
    U16,
    (I32, I32, U32),
    lambda a, b, c: (
        saturate_byte(a >> low5(c).astype(np.int32)) | saturate_byte(b >> low5(c).astype(np.int32)) << np.uint32(8)
    ).astype(np.uint16),
)
define(
    "v_ashr_pk_u8_i32",
    U16,
    (I32, I32, U32),
    lambda a, b, c: (
        saturate_unsigned_byte(a >> low5(c).astype(np.int32))
        | saturate_unsigned_byte(b >> low5(c).astype(np.int32)) << np.uint32(8)
    ).astype(np.uint16),
)
define("v_lshlrev_b64", U64, (U32, U64), lambda a, b: b << (a & np.uint32(63)).astype(np.uint64))
define("v_lshrrev_b64", U64, (U32, U64), lambda a, b: b >> (a & np.uint32(63)).astype(np.uint64))
define("v_ashrrev_i64", I64, (U32, I64), lambda a, b: b >> (a & np.uint32(63)).astype(np.int64))
define("v_lshl_add_u64", U64, (U64, U32, U64), lambda a, b, c: (a << (b & np.uint32(7)).astype(np.uint64)) + c)
define("v_lshlrev_b16", U16, (U16, U16), lambda a, b: b << (a & np.uint16(15)))
define("v_lshrrev_b16", U16, (U16, U16), lambda a, b: b >> (a & np.uint16(15)))
define("v_ashrrev_i16", I16, (U16, I16), lambda a, b: b >> (a & np.uint16(15)).astype(np.int16))
define("v_add_u16 v_add_i16", U16, (U16, U16), np.add)
define("v_sub_u16 v_sub_i16", U16, (U16, U16), np.subtract)
define("v_subrev_u16", U16, (U16, U16), lambda a, b: b - a)
define("v_mul_lo_u16", U16, (U16, U16), np.multiply)
define("v_mad_u16 v_mad_i16 v_mad_legacy_u16 v_mad_legacy_i16", U16, (U16, U16, U16), lambda a, b, c: a * b + c)
define(
    "v_mad_u32_u16",
    U32,
    (U16, U16, U32),
    lambda a, b, c: a.astype(np.uint32) * b.astype(np.uint32) + c,
)
define(
    "v_mad_i32_i16",
    U32,
    (I16, I16, U32),
    lambda a, b, c: low32(a.astype(np.int64) * b.astype(np.int64)) + c,
)


def _extremes(name: str, function: Callable[[Array, Array], Array], other: Callable[[Array, Array], Array]) -> None:
    for suffix, kind in (("u32", U32), ("i32", I32), ("u16", U16), ("i16", I16)):
        define(f"v_{name}_{suffix}", kind, (kind, kind), function)
        define(f"v_{name}3_{suffix}", kind, (kind, kind, kind), lambda a, b, c: function(function(a, b), c))
        if name == "max":
            define(
                f"v_med3_{suffix}",
                kind,
                (kind, kind, kind),
                lambda a, b, c: function(other(a, b), other(function(a, b), c)),
            )


_extremes("max", np.maximum, np.minimum)
_extremes("min", np.minimum, np.maximum)
