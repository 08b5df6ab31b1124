"""Operand and result modifiers: negation, absolute value, clamp, output scaling, op_sel, SDWA, and MODE."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from emulator.snippets import F16, F32, assert_same, execute, fused
from emulator.values import Words, floats, halves, integers, signed

ONE = Fraction(1)
OLD = np.full(64, 0xA5A5A5A5, np.uint32)


def _added(a: int, b: int) -> int:
    return F32.pattern(fused(F32.value(a), ONE, F32.value(b)))


@settings(max_examples=20, deadline=None)
@given(a=floats(), b=floats())
def test_negation_and_absolute_value(a: Words, b: Words) -> None:
    body = """v_add_f32_e64 v20, -v10, v11
    v_add_f32_e64 v21, |v10|, v11
    v_add_f32_e64 v22, v10, -|v11|
    v_add_f32_e64 v23, -v10, -v11"""
    got = execute(body, {"v10": a, "v11": b}, ["v[20:23]"])["v[20:23]"]
    sign, rest = 0x80000000, 0x7FFFFFFF
    changes: list[Callable[[int, int], tuple[int, int]]] = [
        lambda x, y: (x ^ sign, y),
        lambda x, y: (x & rest, y),
        lambda x, y: (x, y | sign),
        lambda x, y: (x ^ sign, y ^ sign),
    ]
    for column, change in enumerate(changes):
        expected = [_added(*change(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert_same(F32, got[:, column].tolist(), expected, a.tolist(), b.tolist())


@settings(max_examples=20, deadline=None)
@given(a=floats(), b=floats())
def test_clamp_and_output_scaling(a: Words, b: Words) -> None:
    # Output scaling flushes no denormals here, so keep results away from them: hardware requires them off.
    a, b = ((v & 0x8FFFFFFF | 0x30000000).astype(np.uint32) for v in (a, b))
    body = """v_mul_f32_e64 v20, v10, v11 clamp
    v_mul_f32_e64 v21, v10, v11 mul:2
    v_mul_f32_e64 v22, v10, v11 mul:4
    v_mul_f32_e64 v23, v10, v11 div:2"""
    got = execute(body, {"v10": a, "v11": b}, ["v[20:23]"])["v[20:23]"]
    for lane, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        product = F32.value(F32.pattern(Fraction(F32.value(x)) * Fraction(F32.value(y))))
        clamped = min(max(Fraction(product), Fraction(0)), ONE)
        wanted = [clamped, *(Fraction(product) * factor for factor in (2, 4, Fraction(1, 2)))]
        assert [F32.value(int(v)) for v in got[lane]] == wanted


def test_clamp_turns_nan_into_zero() -> None:
    got = execute("v_add_f32_e64 v20, v10, v10 clamp", {"v10": np.full(64, 0x7FC00000, np.uint32)}, ["v20"])["v20"]
    assert (got == 0).all()


@settings(max_examples=20, deadline=None)
@given(a=integers(), b=integers(), c=integers())
def test_op_sel_picks_halves_and_keeps_the_other(a: Words, b: Words, c: Words) -> None:
    body = """v_mad_u16 v20, v10, v11, v12 op_sel:[1,0,1,1]
    v_mad_u16 v21, v10, v11, v12 op_sel:[0,1,0,0]"""
    got = execute(body, {"v10": a, "v11": b, "v12": c, "v20": OLD, "v21": OLD}, ["v[20:21]"])["v[20:21]"]
    for lane, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        high = ((x >> 16) * (y & 0xFFFF) + (z >> 16)) & 0xFFFF
        low = ((x & 0xFFFF) * (y >> 16) + (z & 0xFFFF)) & 0xFFFF
        assert got[lane].tolist() == [high << 16 | 0xA5A5, 0xA5A50000 | low]


def _field(word: int, selector: str, sext: bool) -> int:
    if selector == "DWORD":
        return word
    unit, index = selector.split("_")
    width = 8 if unit == "BYTE" else 16
    value = word >> width * int(index) & ((1 << width) - 1)
    return signed(value, width) & 0xFFFFFFFF if sext else value


SELECTORS = ("BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD")


@pytest.mark.parametrize("sext", [False, True])
@settings(max_examples=5, deadline=None)
@given(a=integers(), b=integers())
def test_sdwa_source_selection(sext: bool, a: Words, b: Words) -> None:
    first = "sext(v10)" if sext else "v10"
    lines = [
        f"v_add_u32_sdwa v{20 + i}, {first}, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:{name} src1_sel:{other}"
        for i, (name, other) in enumerate(zip(SELECTORS, reversed(SELECTORS), strict=True))
    ]
    got = execute("\n".join(lines), {"v10": a, "v11": b}, ["v[20:26]"])["v[20:26]"]
    for lane, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        wanted = [
            _field(x, name, sext) + _field(y, SELECTORS[-1 - i], False) & 0xFFFFFFFF for i, name in enumerate(SELECTORS)
        ]
        assert got[lane].tolist() == wanted


@pytest.mark.parametrize("unused", ["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"])
@settings(max_examples=5, deadline=None)
@given(a=integers(), b=integers())
def test_sdwa_destination_selection(unused: str, a: Words, b: Words) -> None:
    lines = [
        f"v_or_b32_sdwa v{20 + i}, v10, v11 dst_sel:{name} dst_unused:{unused} src0_sel:DWORD src1_sel:DWORD"
        for i, name in enumerate(SELECTORS)
    ]
    old = {f"v{20 + i}": OLD for i in range(len(SELECTORS))}
    got = execute("\n".join(lines), {"v10": a, "v11": b, **old}, ["v[20:26]"])["v[20:26]"]
    for lane, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        for column, name in enumerate(SELECTORS):
            assert got[lane, column] == _placed(x | y, name, unused), (name, hex(x | y))


def _placed(value: int, selector: str, unused: str) -> int:
    if selector == "DWORD":
        return value
    unit, index = selector.split("_")
    width = 8 if unit == "BYTE" else 16
    shift = width * int(index)
    mask = ((1 << width) - 1) << shift
    if unused == "UNUSED_PRESERVE":
        return value << shift & mask | 0xA5A5A5A5 & ~mask
    if unused == "UNUSED_SEXT":
        return signed(value, width) << shift & 0xFFFFFFFF
    return value << shift & mask


SDWA: dict[str, Callable[[int, int], int]] = {
    "v_lshlrev_b16": lambda a, b: b << (a & 15) & 0xFFFF,
    "v_ashrrev_i16": lambda a, b: signed(b, 16) >> (a & 15) & 0xFFFF,
    "v_max_u16": lambda a, b: max(a & 0xFFFF, b & 0xFFFF),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_lshlrev_b32": lambda a, b: b << (a & 31) & 0xFFFFFFFF,
    "v_and_b32": lambda a, b: a & b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_max_u32": max,
    "v_sub_u32": lambda a, b: (a - b) & 0xFFFFFFFF,
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) & 0xFFFFFFFF,
}


@pytest.mark.parametrize("name", SDWA)
@settings(max_examples=5, deadline=None)
@given(a=integers(), b=integers())
def test_sdwa_forms_of_compiled_kernels(name: str, a: Words, b: Words) -> None:
    body = f"""{name}_sdwa v20, v10, v11 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1
    {name}_sdwa v21, v10, v11 dst_sel:BYTE_3 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0 src1_sel:DWORD"""
    got = execute(body, {"v10": a, "v11": b, "v21": OLD}, ["v[20:21]"])["v[20:21]"]
    for lane, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        wanted = SDWA[name](x >> 8 & 255, y >> 16)
        placed = _placed(SDWA[name](x & 255, y), "BYTE_3", "UNUSED_PRESERVE")
        assert got[lane].tolist() == [wanted, placed]


@settings(max_examples=5, deadline=None)
@given(a=integers(), b=integers())
def test_sdwa_comparison(a: Words, b: Words) -> None:
    b = np.where(np.arange(64) % 2 == 0, a >> np.uint32(16), b).astype(np.uint32)
    body = "v_cmp_eq_u16_sdwa s[20:21], v10, v11 src0_sel:WORD_1 src1_sel:WORD_0"
    words = execute(body, {"v10": a, "v11": b}, ["s[20:21]"])["s[20:21]"]
    mask = int(words[1]) << 32 | int(words[0])
    assert mask == sum((int(x) >> 16 == int(y) & 0xFFFF) << lane for lane, (x, y) in enumerate(zip(a, b, strict=True)))


@settings(max_examples=10, deadline=None)
@given(a=halves(), b=halves())
def test_sdwa_on_half_precision(a: Words, b: Words) -> None:
    packed = (a | b << np.uint32(16)).astype(np.uint32)
    line = "v_add_f16_sdwa v20, -v10, |v10| dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:WORD_0"
    got = execute(line, {"v10": packed, "v20": OLD}, ["v20"])["v20"]
    assert (got & 0xFFFF == 0xA5A5).all()
    expected = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        expected.append(F16.pattern(fused(F16.value(y ^ 0x8000), ONE, F16.value(x & 0x7FFF))))
    assert_same(F16, (got >> np.uint32(16)).tolist(), expected, a.tolist(), b.tolist())


def test_mode_decides_whether_half_conversions_saturate() -> None:
    values = np.resize(np.array([1e6, -1e6, 65520.0, 65519.0, np.inf, 1.5], np.float32), 64).view(np.uint32)
    body = """v_cvt_f16_f32_e32 v20, v10
    s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1
    s_nop 4
    v_cvt_f16_f32_e32 v21, v10
    s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 0
    s_nop 4
    v_cvt_f16_f32_e32 v22, v10"""
    got = execute(body, {"v10": values}, ["v[20:22]"])["v[20:22]"][:6].T.tolist()
    plain = [0x7C00, 0xFC00, 0x7C00, 0x7BFF, 0x7C00, 0x3E00]
    assert got == [plain, [0x7BFF, 0xFBFF, 0x7BFF, 0x7BFF, 0x7C00, 0x3E00], plain]
