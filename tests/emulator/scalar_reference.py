"""Scalar instructions as functions of Python integers."""

from __future__ import annotations

from collections.abc import Callable

from emulator.values import signed

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
Result = tuple[int, int | None]
"""Result and new SCC; None where SCC is left alone."""


def _flag(value: int, mask: int = M32) -> Result:
    return value & mask, int(value & mask != 0)


def overflowing(value: int) -> Result:
    return value & M32, int(not -(2**31) <= value < 2**31)


def _field(a: int, b: int, bits: int, is_signed: bool) -> int:
    offset, width = b & (bits - 1), min(b >> 16 & 127, bits)
    if is_signed:
        a = signed(a, bits)
        if width and offset + width < bits:
            return signed(a >> offset, width)
        return a >> offset if width else 0
    return a >> offset & ((1 << width) - 1)


def _lowest_one(a: int) -> int:
    return (a & -a).bit_length() - 1


def _leading(a: int, bits: int) -> int:
    return bits - a.bit_length() if a else M32


UNARY32: dict[str, Callable[[int], Result]] = {
    "s_mov_b32": lambda a: (a, None),
    "s_not_b32": lambda a: _flag(~a),
    "s_brev_b32": lambda a: (int(f"{a:032b}"[::-1], 2), None),
    "s_bcnt1_i32_b32": lambda a: _flag(a.bit_count()),
    "s_bcnt0_i32_b32": lambda a: _flag(32 - a.bit_count()),
    "s_ff1_i32_b32": lambda a: (_lowest_one(a), None),
    "s_ff0_i32_b32": lambda a: (_lowest_one(~a & M32), None),
    "s_flbit_i32_b32": lambda a: (_leading(a, 32), None),
    "s_flbit_i32": lambda a: (M32 if a in (0, M32) else 32 - (a ^ (M32 if a >> 31 else 0)).bit_length(), None),
    "s_abs_i32": lambda a: _flag(abs(signed(a))),
    "s_sext_i32_i8": lambda a: (signed(a, 8), None),
    "s_sext_i32_i16": lambda a: (signed(a, 16), None),
}
UNARY64: dict[str, Callable[[int], Result]] = {
    "s_mov_b64": lambda a: (a, None),
    "s_not_b64": lambda a: _flag(~a, M64),
}
COUNT64: dict[str, Callable[[int], Result]] = {
    "s_bcnt1_i32_b64": lambda a: _flag(a.bit_count()),
    "s_bcnt0_i32_b64": lambda a: _flag(64 - a.bit_count()),
    "s_ff1_i32_b64": lambda a: (_lowest_one(a), None),
    "s_flbit_i32_b64": lambda a: (_leading(a, 64), None),
}
BINARY32: dict[str, Callable[[int, int], Result]] = {
    "s_add_u32": lambda a, b: ((a + b) & M32, int(a + b > M32)),
    "s_sub_u32": lambda a, b: ((a - b) & M32, int(b > a)),
    "s_add_i32": lambda a, b: overflowing(signed(a) + signed(b)),
    "s_sub_i32": lambda a, b: overflowing(signed(a) - signed(b)),
    "s_mul_i32": lambda a, b: (a * b, None),
    "s_mul_hi_u32": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32": lambda a, b: (signed(a) * signed(b) >> 32, None),
    "s_and_b32": lambda a, b: _flag(a & b),
    "s_or_b32": lambda a, b: _flag(a | b),
    "s_xor_b32": lambda a, b: _flag(a ^ b),
    "s_andn2_b32": lambda a, b: _flag(a & ~b),
    "s_orn2_b32": lambda a, b: _flag(a | ~b),
    "s_nand_b32": lambda a, b: _flag(~(a & b)),
    "s_nor_b32": lambda a, b: _flag(~(a | b)),
    "s_xnor_b32": lambda a, b: _flag(~(a ^ b)),
    "s_lshl_b32": lambda a, b: _flag(a << (b & 31)),
    "s_lshr_b32": lambda a, b: _flag(a >> (b & 31)),
    "s_ashr_i32": lambda a, b: _flag(signed(a) >> (b & 31)),
    "s_min_i32": lambda a, b: (min(signed(a), signed(b)), int(signed(a) < signed(b))),
    "s_max_i32": lambda a, b: (max(signed(a), signed(b)), int(signed(a) >= signed(b))),
    "s_min_u32": lambda a, b: (min(a, b), int(a < b)),
    "s_max_u32": lambda a, b: (max(a, b), int(a >= b)),
    "s_bfm_b32": lambda a, b: (((1 << (a & 31)) - 1) << (b & 31), None),
    "s_bfe_u32": lambda a, b: _flag(_field(a, b, 32, False)),
    "s_bfe_i32": lambda a, b: _flag(_field(a, b, 32, True)),
    "s_pack_ll_b32_b16": lambda a, b: (a & 0xFFFF | b << 16, None),
    "s_pack_lh_b32_b16": lambda a, b: (a & 0xFFFF | b & 0xFFFF0000, None),
    "s_pack_hh_b32_b16": lambda a, b: (a >> 16 | b & 0xFFFF0000, None),
    "s_absdiff_i32": lambda a, b: _flag(abs(signed(signed(a) - signed(b)))),
    **{
        f"s_lshl{n}_add_u32": lambda a, b, n=n: (((a << n) + b) & M32, int((a << n) + b > M32))  # type: ignore[misc]
        for n in (1, 2, 3, 4)
    },
}
BINARY64: dict[str, Callable[[int, int], Result]] = {
    "s_and_b64": lambda a, b: _flag(a & b, M64),
    "s_or_b64": lambda a, b: _flag(a | b, M64),
    "s_xor_b64": lambda a, b: _flag(a ^ b, M64),
    "s_andn2_b64": lambda a, b: _flag(a & ~b, M64),
    "s_orn2_b64": lambda a, b: _flag(a | ~b, M64),
    "s_nand_b64": lambda a, b: _flag(~(a & b), M64),
    "s_nor_b64": lambda a, b: _flag(~(a | b), M64),
    "s_xnor_b64": lambda a, b: _flag(~(a ^ b), M64),
}
SHIFT64: dict[str, Callable[[int, int], Result]] = {
    "s_lshl_b64": lambda a, b: _flag(a << (b & 63), M64),
    "s_lshr_b64": lambda a, b: _flag(a >> (b & 63), M64),
    "s_ashr_i64": lambda a, b: _flag(signed(a, 64) >> (b & 63), M64),
    "s_bfe_u64": lambda a, b: _flag(_field(a, b, 64, False), M64),
    "s_bfe_i64": lambda a, b: _flag(_field(a, b, 64, True), M64),
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
