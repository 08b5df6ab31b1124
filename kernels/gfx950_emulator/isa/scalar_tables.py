"""Tables of scalar operations: operand widths, functions, and how SCC is set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gfx950_emulator.isa.integer_ops import (
    count_ones,
    extract_signed,
    extract_unsigned,
    leading_sign_bits,
    leading_zeros,
    low5,
    low32,
    reverse_bits,
    trailing_zeros,
)
from gfx950_emulator.machine.arrays import Array

Flag = Callable[..., Array]
"""(result, *sources) to the new SCC."""


@dataclass(frozen=True)
class ScalarOperation:
    function: Callable[..., Array]
    scc: Flag | None = None
    wide_result: bool = False
    wide_sources: tuple[bool, ...] = (False,)
    carry_in: bool = False
    """SCC follows the sources as last argument."""


def nonzero(result: Array, *_: Array) -> Array:
    """SCC = result != 0."""
    return np.asarray(result != 0)


def _add_overflow(result: Array, a: Array, b: Array) -> Array:
    return np.asarray((~(a ^ b) & (a ^ result)) >> np.uint32(31) != 0)


def _sub_overflow(result: Array, a: Array, b: Array) -> Array:
    return np.asarray(((a ^ b) & (a ^ result)) >> np.uint32(31) != 0)


def _signed(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(a.view(np.int32), b.view(np.int32)).view(np.uint32)


def _field_width(b: Array) -> Array:
    return b >> np.uint32(16) & np.uint32(127)


def _extract32(a: Array, b: Array) -> Array:
    whole = a >> low5(b)
    return np.where(_field_width(b) >= 32, whole, extract_unsigned(a, b, _field_width(b)))


def _extract_signed32(a: Array, b: Array) -> Array:
    whole = (a.view(np.int32) >> low5(b).astype(np.int32)).view(np.uint32)
    clipped = np.where(low5(b) + _field_width(b) >= 32, whole, extract_signed(a, b, _field_width(b)).view(np.uint32))
    return np.where(_field_width(b) == 0, np.uint32(0), clipped)


def _extract64(a: Array, b: Array, signed: bool) -> Array:
    offset, width = (b & np.uint32(63)).astype(np.uint64), np.minimum(_field_width(b), 64).astype(np.uint64)
    up = np.uint64(64) - width
    moved = (a.view(np.int64) >> offset.astype(np.int64)).view(np.uint64) if signed else a >> offset
    shifted = np.where(width == 0, np.uint64(0), moved << (up & np.uint64(63)))
    down = up & np.uint64(63)
    if signed:
        return (shifted.view(np.int64) >> down.astype(np.int64)).view(np.uint64)
    return np.asarray(shifted >> down)


def _replicate(a: Array) -> Array:
    wide = a.astype(np.uint64)
    result = np.zeros_like(wide)
    for bit in range(32):
        result |= (wide >> np.uint64(bit) & np.uint64(1)) * np.uint64(3) << np.uint64(2 * bit)
    return result


def _trailing64(a: Array) -> Array:
    low = (a & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (a >> np.uint64(32)).astype(np.uint32)
    return np.where(low != 0, trailing_zeros(low), np.where(high != 0, trailing_zeros(high) + 32, 0xFFFFFFFF)).astype(
        np.uint32
    )


def _leading64(a: Array) -> Array:
    low = (a & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (a >> np.uint64(32)).astype(np.uint32)
    return np.where(high != 0, leading_zeros(high), np.where(low != 0, leading_zeros(low) + 32, 0xFFFFFFFF)).astype(
        np.uint32
    )


def _ones64(a: Array) -> Array:
    return np.bitwise_count(a).astype(np.uint32)


def _wide(function: Callable[..., Array], scc: Flag | None = nonzero, sources: int = 2) -> ScalarOperation:
    return ScalarOperation(function, scc, True, (True,) * sources)


def _pair(function: Callable[..., Array], scc: Flag | None = None) -> ScalarOperation:
    return ScalarOperation(function, scc, False, (False, False))


def _shift64(function: Callable[..., Array]) -> ScalarOperation:
    return ScalarOperation(function, nonzero, True, (True, False))


def _amount64(b: Array) -> Array:
    return (b & np.uint32(63)).astype(np.uint64)


def _add_carry(a: Array, b: Array, carry: Array) -> Array:
    return a + b + carry.astype(np.uint32)


def _carry_out(result: Array, a: Array, b: Array, carry: Array) -> Array:
    return a.astype(np.uint64) + b.astype(np.uint64) + carry.astype(np.uint64) > np.uint64(0xFFFFFFFF)


def _borrow_out(result: Array, a: Array, b: Array, carry: Array) -> Array:
    return b.astype(np.uint64) + carry.astype(np.uint64) > a.astype(np.uint64)


UNARY: dict[str, ScalarOperation] = {
    "s_mov_b32": ScalarOperation(lambda a: a),
    "s_mov_b64": _wide(lambda a: a, None, 1),
    "s_not_b32": ScalarOperation(lambda a: ~a, nonzero),
    "s_not_b64": _wide(lambda a: ~a, nonzero, 1),
    "s_brev_b32": ScalarOperation(reverse_bits),
    "s_bcnt1_i32_b32": ScalarOperation(count_ones, nonzero),
    "s_bcnt0_i32_b32": ScalarOperation(lambda a: count_ones(~a), nonzero),
    "s_bcnt1_i32_b64": ScalarOperation(_ones64, nonzero, False, (True,)),
    "s_bcnt0_i32_b64": ScalarOperation(lambda a: _ones64(~a), nonzero, False, (True,)),
    "s_ff1_i32_b32": ScalarOperation(trailing_zeros),
    "s_ff1_i32_b64": ScalarOperation(_trailing64, None, False, (True,)),
    "s_ff0_i32_b32": ScalarOperation(lambda a: trailing_zeros(~a)),
    "s_flbit_i32_b32": ScalarOperation(leading_zeros),
    "s_flbit_i32_b64": ScalarOperation(_leading64, None, False, (True,)),
    "s_flbit_i32": ScalarOperation(leading_sign_bits),
    "s_abs_i32": ScalarOperation(lambda a: np.abs(a.view(np.int32)).view(np.uint32), nonzero),
    "s_sext_i32_i8": ScalarOperation(lambda a: a.astype(np.uint8).view(np.int8).astype(np.int32).view(np.uint32)),
    "s_sext_i32_i16": ScalarOperation(lambda a: a.astype(np.uint16).view(np.int16).astype(np.int32).view(np.uint32)),
    "s_bitreplicate_b64_b32": ScalarOperation(_replicate, None, True, (False,)),
}

BINARY: dict[str, ScalarOperation] = {
    "s_add_u32": _pair(np.add, lambda r, a, b: r < a),
    "s_add_i32": _pair(np.add, _add_overflow),
    "s_sub_u32": _pair(np.subtract, lambda r, a, b: b > a),
    "s_sub_i32": _pair(np.subtract, _sub_overflow),
    "s_addc_u32": ScalarOperation(_add_carry, _carry_out, False, (False, False), True),
    "s_subb_u32": ScalarOperation(
        lambda a, b, carry: a - b - carry.astype(np.uint32), _borrow_out, False, (False, False), True
    ),
    "s_mul_i32": _pair(np.multiply),
    "s_mul_hi_u32": _pair(lambda a, b: low32(a.astype(np.uint64) * b.astype(np.uint64) >> np.uint64(32))),
    "s_mul_hi_i32": _pair(
        lambda a, b: low32(a.view(np.int32).astype(np.int64) * b.view(np.int32).astype(np.int64) >> np.int64(32))
    ),
    "s_and_b32": _pair(np.bitwise_and, nonzero),
    "s_or_b32": _pair(np.bitwise_or, nonzero),
    "s_xor_b32": _pair(np.bitwise_xor, nonzero),
    "s_andn2_b32": _pair(lambda a, b: a & ~b, nonzero),
    "s_orn2_b32": _pair(lambda a, b: a | ~b, nonzero),
    "s_nand_b32": _pair(lambda a, b: ~(a & b), nonzero),
    "s_nor_b32": _pair(lambda a, b: ~(a | b), nonzero),
    "s_xnor_b32": _pair(lambda a, b: ~(a ^ b), nonzero),
    "s_lshl_b32": _pair(lambda a, b: a << low5(b), nonzero),
    "s_lshr_b32": _pair(lambda a, b: a >> low5(b), nonzero),
    "s_ashr_i32": _pair(lambda a, b: (a.view(np.int32) >> low5(b).astype(np.int32)).view(np.uint32), nonzero),
    "s_min_i32": _pair(_signed(np.minimum), lambda r, a, b: a.view(np.int32) < b.view(np.int32)),
    "s_max_i32": _pair(_signed(np.maximum), lambda r, a, b: a.view(np.int32) >= b.view(np.int32)),
    "s_min_u32": _pair(np.minimum, lambda r, a, b: a < b),
    "s_max_u32": _pair(np.maximum, lambda r, a, b: a >= b),
    "s_bfm_b32": _pair(lambda a, b: ((np.uint32(1) << low5(a)) - np.uint32(1)) << low5(b)),
    "s_bfm_b64": ScalarOperation(
        lambda a, b: ((np.uint64(1) << _amount64(a)) - np.uint64(1)) << _amount64(b), None, True, (False, False)
    ),
    "s_bfe_u32": _pair(_extract32, nonzero),
    "s_bfe_i32": _pair(_extract_signed32, nonzero),
    "s_bfe_u64": _shift64(lambda a, b: _extract64(a, b, signed=False)),
    "s_bfe_i64": _shift64(lambda a, b: _extract64(a, b, signed=True)),
    "s_pack_ll_b32_b16": _pair(lambda a, b: (a & np.uint32(0xFFFF)) | b << np.uint32(16)),
    "s_pack_lh_b32_b16": _pair(lambda a, b: (a & np.uint32(0xFFFF)) | (b & np.uint32(0xFFFF0000))),
    "s_pack_hh_b32_b16": _pair(lambda a, b: (a >> np.uint32(16)) | (b & np.uint32(0xFFFF0000))),
    "s_absdiff_i32": _pair(
        lambda a, b: np.abs((a.view(np.int32) - b.view(np.int32)).astype(np.int32)).view(np.uint32), nonzero
    ),
    "s_and_b64": _wide(np.bitwise_and),
    "s_or_b64": _wide(np.bitwise_or),
    "s_xor_b64": _wide(np.bitwise_xor),
    "s_andn2_b64": _wide(lambda a, b: a & ~b),
    "s_orn2_b64": _wide(lambda a, b: a | ~b),
    "s_nand_b64": _wide(lambda a, b: ~(a & b)),
    "s_nor_b64": _wide(lambda a, b: ~(a | b)),
    "s_xnor_b64": _wide(lambda a, b: ~(a ^ b)),
    "s_lshl_b64": _shift64(lambda a, b: a << _amount64(b)),
    "s_lshr_b64": _shift64(lambda a, b: a >> _amount64(b)),
    "s_ashr_i64": _shift64(lambda a, b: (a.view(np.int64) >> _amount64(b).astype(np.int64)).view(np.uint64)),
}


def _shift_add(amount: int) -> ScalarOperation:
    shift = np.uint64(amount)
    return _pair(
        lambda a, b: low32((a.astype(np.uint64) << shift) + b.astype(np.uint64)),
        lambda r, a, b: (a.astype(np.uint64) << shift) + b.astype(np.uint64) > np.uint64(0xFFFFFFFF),
    )


for _amount in (1, 2, 3, 4):
    BINARY[f"s_lshl{_amount}_add_u32"] = _shift_add(_amount)

SAVE_EXEC: dict[str, Callable[[Array, Array], Array]] = {
    "s_and_saveexec_b64": lambda value, old: value & old,
    "s_or_saveexec_b64": lambda value, old: value | old,
    "s_xor_saveexec_b64": lambda value, old: value ^ old,
    "s_andn2_saveexec_b64": lambda value, old: value & ~old,
    "s_orn2_saveexec_b64": lambda value, old: value | ~old,
    "s_nand_saveexec_b64": lambda value, old: ~(value & old),
    "s_nor_saveexec_b64": lambda value, old: ~(value | old),
    "s_xnor_saveexec_b64": lambda value, old: ~(value ^ old),
    "s_andn1_saveexec_b64": lambda value, old: ~value & old,
    "s_orn1_saveexec_b64": lambda value, old: ~value | old,
}
