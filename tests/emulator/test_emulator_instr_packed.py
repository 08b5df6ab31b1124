"""Packed instructions (two 16-bit or two 32-bit operations a lane) and dot products."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from emulator.snippets import BF16, F16, F32, Format, assert_same, execute, fused
from emulator.snippets import halves as split
from emulator.values import Words, floats, halves, integers, signed

ONE = Fraction(1)
Half = Callable[..., int]


def _float(form: Format, function: Callable[..., Any]) -> Half:
    return lambda *bits: form.pattern(function(*(form.value(b) for b in bits)))


def _sum(a: Any, b: Any) -> Any:
    return fused(a, ONE, b)


def _product(a: Any, b: Any) -> Any:
    signed_zero = -0.0 if (str(a)[0] == "-") != (str(b)[0] == "-") else 0.0
    return fused(a, b, signed_zero)


def _s16(value: int) -> int:
    return signed(value, 16)


INTEGER: dict[str, tuple[int, Half]] = {
    "v_pk_add_u16": (2, lambda a, b: a + b),
    "v_pk_sub_u16": (2, lambda a, b: a - b),
    "v_pk_add_i16": (2, lambda a, b: a + b),
    "v_pk_sub_i16": (2, lambda a, b: a - b),
    "v_pk_mul_lo_u16": (2, lambda a, b: a * b),
    "v_pk_mad_u16": (3, lambda a, b, c: a * b + c),
    "v_pk_mad_i16": (3, lambda a, b, c: a * b + c),
    "v_pk_max_u16": (2, max),
    "v_pk_min_u16": (2, min),
    "v_pk_max_i16": (2, lambda a, b: max(_s16(a), _s16(b))),
    "v_pk_min_i16": (2, lambda a, b: min(_s16(a), _s16(b))),
    "v_pk_lshlrev_b16": (2, lambda a, b: b << (a & 15)),
    "v_pk_lshrrev_b16": (2, lambda a, b: b >> (a & 15)),
    "v_pk_ashrrev_i16": (2, lambda a, b: _s16(b) >> (a & 15)),
}
FLOAT: dict[str, tuple[int, Half]] = {
    "v_pk_add_f16": (2, _float(F16, _sum)),
    "v_pk_mul_f16": (2, _float(F16, _product)),
    "v_pk_fma_f16": (3, _float(F16, fused)),
}
SELECTS = ([0, 0, 0], [1, 1, 1]), ([1, 0, 1], [0, 1, 0]), ([0, 1, 0], [1, 0, 0]), ([1, 1, 1], [1, 1, 1])
"""(op_sel, op_sel_hi): which half of each source the low and the high result use."""


def _list(values: list[int], count: int) -> str:
    return ",".join(str(v) for v in values[:count])


@pytest.mark.parametrize("name", [*INTEGER, *FLOAT])
@settings(max_examples=5, deadline=None)
@given(a=integers(), b=integers(), c=integers(), d=halves(), e=halves(), f=halves())
def test_two_halves_a_lane(name: str, a: Words, b: Words, c: Words, d: Words, e: Words, f: Words) -> None:
    if name in FLOAT:
        a, b, c = (d | e << np.uint32(16), e | f << np.uint32(16), f | d << np.uint32(16))
    count, function = (FLOAT if name in FLOAT else INTEGER)[name]
    sources = ", ".join(f"v{10 + i}" for i in range(count))
    lines = [
        f"{name} v{20 + i}, {sources} op_sel:[{_list(low, count)}] op_sel_hi:[{_list(high, count)}]"
        for i, (low, high) in enumerate(SELECTS)
    ]
    got = execute("\n".join(lines), {"v10": a, "v11": b, "v12": c}, ["v[20:23]"])["v[20:23]"]
    parts = [split(words) for words in (a, b, c)]
    for column, selects in enumerate(SELECTS):
        for half, chosen in enumerate(selects):
            operands = [[lane[chosen[i]] for lane in parts[i]] for i in range(count)]
            expected = [function(*row) & 0xFFFF for row in zip(*operands, strict=True)]
            actual = [lane[half] for lane in split(got[:, column])]
            if name in FLOAT:
                assert_same(F16, actual, expected, *operands)
            else:
                assert actual == expected


@settings(max_examples=10, deadline=None)
@given(a=floats(), b=floats(), c=floats(), d=floats())
def test_two_words_a_lane(a: Words, b: Words, c: Words, d: Words) -> None:
    first, second = np.stack([a, b], 1), np.stack([c, d], 1)
    body = """v_pk_add_f32 v[20:21], v[10:11], v[12:13]
    v_pk_mul_f32 v[22:23], v[10:11], v[12:13] op_sel_hi:[0,1]
    v_pk_fma_f32 v[24:25], v[10:11], v[12:13], v[10:11] op_sel:[0,1,1] op_sel_hi:[1,0,0]
    v_pk_add_f32 v[26:27], v[10:11], v[12:13] neg_lo:[0,1] neg_hi:[1,0]
    v_pk_mov_b32 v[28:29], v[10:11], v[12:13] op_sel:[1,0]"""
    got = execute(body, {"v[10:11]": first, "v[12:13]": second}, ["v[20:29]"])["v[20:29]"]
    add, multiply, fma = _float(F32, _sum), _float(F32, _product), _float(F32, fused)
    sign = 1 << 31
    functions: list[Half] = [
        lambda a, b, c, d: add(a, c),
        lambda a, b, c, d: add(b, d),
        lambda a, b, c, d: multiply(a, c),
        lambda a, b, c, d: multiply(a, d),
        lambda a, b, c, d: fma(a, d, b),
        lambda a, b, c, d: fma(b, c, a),
        lambda a, b, c, d: add(a, c ^ sign),
        lambda a, b, c, d: add(b ^ sign, d),
        lambda a, b, c, d: b,
        lambda a, b, c, d: c,
    ]
    rows = list(zip(*(words.tolist() for words in (a, b, c, d)), strict=True))
    for column, function in enumerate(functions):
        assert_same(F32, got[:, column].tolist(), [function(*row) for row in rows], *zip(*rows, strict=True))


@settings(max_examples=10, deadline=None)
@given(a=floats(), b=floats(), c=floats(), d=halves(), e=halves())
def test_a_product_of_mixed_widths(a: Words, b: Words, c: Words, d: Words, e: Words) -> None:
    """Norm weights in float16 are taken so."""
    body = """v_fma_mix_f32 v20, v10, v11, v12
    v_fma_mix_f32 v21, v13, v11, v12 op_sel_hi:[1,0,0]
    v_fma_mix_f32 v22, v10, -v13, |v12| op_sel:[0,1,0] op_sel_hi:[0,1,0]
    v_fma_mix_f32 v23, v13, v13, neg(0) op_sel:[0,1,0] op_sel_hi:[1,1,0]"""
    given_values = {"v10": a, "v11": b, "v12": c, "v13": d | e << np.uint32(16)}
    got = execute(body, given_values, ["v[20:23]"])["v[20:23]"]
    low, high = (words.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32) for words in (d, e))
    sign, fma = np.uint32(1 << 31), _float(F32, fused)
    minus_zero = np.full_like(a, sign)
    expected = [(a, b, c), (low, b, c), (a, high ^ sign, c & ~sign), (low, high, minus_zero)]
    for column, columns in enumerate(expected):
        rows = [column_.tolist() for column_ in columns]
        wanted = [fma(*row) for row in zip(*rows, strict=True)]
        assert_same(F32, got[:, column].tolist(), wanted, *rows)


@settings(max_examples=10, deadline=None)
@given(a=integers(), b=integers(), c=integers())
def test_byte_dot_products(a: Words, b: Words, c: Words) -> None:
    body = """v_dot4_i32_i8 v20, v10, v11, v12
    v_dot4_u32_u8 v21, v10, v11, v12
    v_mov_b32_e32 v22, v12
    v_dot4c_i32_i8_e32 v22, v10, v11"""
    got = execute(body, {"v10": a, "v11": b, "v12": c}, ["v[20:22]"])["v[20:22]"]
    for words, x, y, z in zip(got.tolist(), a.tolist(), b.tolist(), c.tolist(), strict=True):
        pairs = list(zip(x.to_bytes(4), y.to_bytes(4), strict=True))
        plain = z + sum(signed(p, 8) * signed(q, 8) for p, q in pairs) & 0xFFFFFFFF
        assert words == [plain, z + sum(p * q for p, q in pairs) & 0xFFFFFFFF, plain]


@pytest.mark.parametrize(("kind", "form"), [("f16", F16), ("bf16", BF16)])
def test_half_dot_products_of_exact_values(kind: str, form: Format) -> None:
    rng = np.random.default_rng(3)
    numbers = rng.integers(-32, 33, (4, 64))
    packed = [
        np.array(
            [form.pattern(Fraction(int(x))) | form.pattern(Fraction(int(y))) << 16 for x, y in zip(*two, strict=True)],
            np.uint32,
        )
        for two in (numbers[:2], numbers[2:])
    ]
    addend = np.array([F32.pattern(Fraction(int(v), 4)) for v in rng.integers(-99, 99, 64)], np.uint32)
    body = f"v_mov_b32_e32 v20, v12\nv_dot2c_f32_{kind}_e32 v20, v10, v11\nv_dot2_f32_{kind} v21, v10, v11, v12"
    got = execute(body, {"v10": packed[0], "v11": packed[1], "v12": addend}, ["v[20:21]"])["v[20:21]"]
    for lane in range(64):
        exact = int(numbers[0, lane] * numbers[2, lane] + numbers[1, lane] * numbers[3, lane])
        assert F32.value(int(got[lane, 0])) == exact + F32.value(int(addend[lane]))
        assert got[lane, 0] == got[lane, 1]
