"""v_cvt_scalef32_*: fp8, bf8 and fp4 with a power-of-two scale, every byte and half selection."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from emulator.small_formats import BF8, FP4, FP8, SmallFormat
from emulator.snippets import BF16, F16, F32, assert_same, execute
from emulator.snippets import halves as split
from emulator.values import Words, floats, integers

SMALL = {"fp8": FP8, "bf8": BF8, "fp4": FP4}
LARGE = {"f32": F32, "f16": F16, "bf16": BF16}
OLD = np.full(64, 0xA5A5A5A5, np.uint32)


def _scales() -> Words:
    """Scale operands whose exponents run from 2**-20 up, with signs and mantissas that must not count."""
    lanes = np.arange(64)
    bits = (lanes // 2 + 107) << 23 | lanes * 0x1357 & 0x7FFFFF | (lanes & 1) << 31
    return bits.astype(np.uint32)


def _scaled(value: Fraction | float, scale: int, direction: int) -> Fraction | float:
    power = (scale >> 23 & 255) - 127
    return value if isinstance(value, float) else value * Fraction(2) ** (direction * power)


def _codes(form: SmallFormat, word: int) -> list[int]:
    return [word >> form.bits * i & ((1 << form.bits) - 1) for i in range(32 // form.bits)]


@pytest.mark.parametrize("target", LARGE)
@pytest.mark.parametrize("source", SMALL)
@settings(max_examples=5, deadline=None)
@given(a=integers())
def test_decoding_pairs(source: str, target: str, a: Words) -> None:
    form, large, scales = SMALL[source], LARGE[target], _scales()
    places = [(i & 1, i >> 1) for i in range(4)] if form.bits == 4 else [(0, 0), (1, 0)]
    wide = target == "f32"
    lines = []
    for i, (low, high) in enumerate(places):
        destination = f"v[{20 + 2 * i}:{21 + 2 * i}]" if wide else f"v{20 + i}"
        select = f"op_sel:[{low},{high},0]" if form.bits == 4 else f"op_sel:[{low},0,0]"
        lines.append(f"v_cvt_scalef32_pk_{target}_{source} {destination}, v10, v11 {select}")
    last = 20 + len(places) * (2 if wide else 1) - 1
    got = execute("\n".join(lines), {"v10": a, "v11": scales}, [f"v[20:{last}]"])[f"v[20:{last}]"]
    for lane in range(64):
        values = [form.value(code) for code in _codes(form, int(a[lane]))]
        wanted = [large.pattern(_scaled(value, int(scales[lane]), 1)) for value in values]
        actual = got[lane].tolist() if wide else [half for word in split(got[lane]) for half in word]
        assert_same(large, actual, wanted)


@pytest.mark.parametrize("source", ["fp8", "bf8"])
@settings(max_examples=5, deadline=None)
@given(a=integers())
def test_decoding_one_byte(source: str, a: Words) -> None:
    form, scales = SMALL[source], _scales()
    lines = [f"v_cvt_scalef32_f32_{source} v{20 + i}, v10, v11 op_sel:[{i & 1},{i >> 1},0]" for i in range(4)]
    got = execute("\n".join(lines), {"v10": a, "v11": scales}, ["v[20:23]"])["v[20:23]"]
    for lane in range(64):
        values = [form.value(code) for code in _codes(form, int(a[lane]))]
        assert_same(F32, got[lane].tolist(), [F32.pattern(_scaled(v, int(scales[lane]), 1)) for v in values])


def _same(form: SmallFormat, value: Fraction | float, actual: int, expected: int) -> bool:
    """Equal codes; the sign that NaN leaves on fp4's largest value is not specified."""
    if value != value and form.nan is None:
        return actual & 7 == expected & 7
    return form.same(actual, expected)


def _sources(
    kind: str, a: Words, b: Words
) -> tuple[str, dict[str, Words], list[tuple[Fraction | float, Fraction | float]]]:
    """Operand text, registers, and the two values of each lane."""
    if kind == "f32":
        values = [(F32.value(int(x)), F32.value(int(y))) for x, y in zip(a, b, strict=True)]
        return "v10, v11", {"v10": a, "v11": b}, values
    form = LARGE[kind]
    return "v10", {"v10": a}, [(form.value(low), form.value(high)) for low, high in split(a)]


@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize("target", SMALL)
@settings(max_examples=5, deadline=None)
@given(a=floats(), b=floats())
def test_encoding_pairs(target: str, kind: str, a: Words, b: Words) -> None:
    form, scales = SMALL[target], _scales()
    operands, inputs, values = _sources(kind, a, b)
    count = operands.count("v") + 1
    if form.bits == 4:
        selects = [f"op_sel:[0,0,{i & 1},{i >> 1}]" for i in range(4)]
    else:
        selects = ["op_sel:[" + ",".join("0" * count) + f",{i}]" for i in range(2)]
    lines = []
    for i, select in enumerate(selects):
        lines += [f"v_cvt_scalef32_pk_{target}_{kind} v20, {operands}, v12 {select}", "s_nop 1"]
        lines += [f"v_mov_b32_e32 v{21 + i}, v20"]
    got = execute(
        "\n".join(lines), {**inputs, "v12": scales, "v20": OLD}, ["v[21:24]" if form.bits == 4 else "v[21:22]"]
    )
    words = next(iter(got.values()))
    for lane, two in enumerate(values):
        # MODE.FP16_OVFL is off: eight-bit formats overflow to NaN or infinity; fp4 has neither.
        codes = [form.encode(_scaled(value, int(scales[lane]), -1), form.bits == 4) for value in two]
        for i in range(len(selects)):
            written = _codes(form, int(words[lane, i]))[2 * i : 2 * i + 2]
            assert all(_same(form, *triple) for triple in zip(two, written, codes, strict=True)), (two, written, codes)
            kept = int(words[lane, i]) >> form.bits * 2 * (i + 1)
            assert kept == 0xA5A5A5A5 >> form.bits * 2 * (i + 1)


def test_a_scale_of_all_ones_is_nan() -> None:
    scale = np.full(64, 0x7F800000, np.uint32)
    codes = np.arange(64, dtype=np.uint32)
    got = execute("v_cvt_scalef32_pk_f32_fp4 v[20:21], v10, v11", {"v10": codes, "v11": scale}, ["v[20:21]"])[
        "v[20:21]"
    ]
    assert all(math.isnan(float(F32.value(int(word)))) for word in got.reshape(-1))
