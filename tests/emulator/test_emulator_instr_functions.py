"""Scaling, taking apart, reciprocals, roots, exponentials and logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.snippets import F32, assert_same, execute
from emulator.values import Words, floats, integers, signed


@settings(max_examples=8, deadline=None)
@given(a=floats(), b=integers())
def test_ldexp_scales_by_a_power_of_two_with_one_rounding(a: Words, b: Words) -> None:
    b = np.array([signed(int(v)) % 400 - 200 for v in b], np.int64).astype(np.uint32)
    got = execute("v_ldexp_f32 v20, v10, v11", {"v10": a, "v11": b}, ["v20"])["v20"]
    expected = []
    for bits, power in zip(a.tolist(), b.tolist(), strict=True):
        value = F32.value(bits)
        expected.append(F32.pattern(value if isinstance(value, float) else value * Fraction(2) ** signed(power)))
    assert_same(F32, got.tolist(), expected, a.tolist(), b.tolist())


@settings(max_examples=8, deadline=None)
@given(a=floats())
def test_frexp_and_fract_take_a_number_apart(a: Words) -> None:
    body = """v_frexp_mant_f32_e32 v20, v10
    v_frexp_exp_i32_f32_e32 v21, v10
    v_fract_f32_e32 v22, v10"""
    got = execute(body, {"v10": a}, ["v[20:22]"])["v[20:22]"]
    for bits, (mantissa, exponent, fraction) in zip(a.tolist(), got.tolist(), strict=True):
        value = F32.value(bits)
        if isinstance(value, float) and value != 0:
            assert exponent == 0
            assert F32.same(mantissa, bits)
            continue
        part = F32.value(mantissa)
        assert part * Fraction(2) ** signed(exponent) == value
        assert value == 0 or 0.5 <= abs(float(part)) < 1
        below_one = 1 - Fraction(1, 1 << 24)
        exact = Fraction(value) - math.floor(value)
        assert F32.value(fraction) == min(F32.value(F32.pattern(exact)), below_one)


@pytest.mark.parametrize(("name", "reference"), [("rcp", lambda a: 1 / a), ("sqrt", None), ("rsq", None)])
@settings(max_examples=6, deadline=None)
@given(a=floats())
def test_roots_and_reciprocals_are_correctly_rounded(
    name: str, reference: Callable[[Fraction], Fraction] | None, a: Words
) -> None:
    a = np.clip(a & 0x7FFFFFFF, 0x00800000, 0x7F7FFFFF).astype(np.uint32)
    got = execute(f"v_{name}_f32_e32 v20, v10", {"v10": a}, ["v20"])["v20"]
    scale = 10**60
    for bits, result in zip(a.tolist(), got.tolist(), strict=True):
        value = Fraction(F32.value(bits))
        exact = (
            reference(value)
            if reference
            else Fraction(math.isqrt(value.numerator * scale**2 // value.denominator), scale)
        )
        if name == "rsq":
            exact = 1 / exact
        assert result == F32.pattern(exact), hex(bits)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_exp2_and_log2_invert_each_other(seed: int) -> None:
    a = np.random.default_rng(seed).uniform(-125, 125, 64).astype(np.float32).view(np.uint32)
    got = execute("v_exp_f32_e32 v20, v10\ns_nop 1\nv_log_f32_e32 v21, v20", {"v10": a}, ["v[20:21]"])["v[20:21]"]
    for bits, (power, back) in zip(a.tolist(), got.tolist(), strict=True):
        exponent = float(F32.value(bits))
        assert float(F32.value(power)) == pytest.approx(2.0**exponent, rel=2**-23)
        assert float(F32.value(back)) == pytest.approx(exponent, abs=2**-16)


def test_special_values_of_transcendental_functions() -> None:
    inputs = np.array([0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xBF800000], np.uint32)
    a = np.resize(inputs, 64)
    names = ("rcp", "rsq", "sqrt", "exp", "log", "sin", "rcp_iflag")
    body = "\n".join(f"v_{name}_f32_e32 v{20 + i}, v10" for i, name in enumerate(names))
    got = execute(body, {"v10": a}, ["v[20:26]"])["v[20:26]"][:6]
    inf, nan = math.inf, math.nan
    expected = {
        "rcp": [inf, -inf, 0.0, -0.0, nan, -1.0],
        "rsq": [inf, -inf, 0.0, nan, nan, nan],
        "sqrt": [0.0, -0.0, inf, nan, nan, nan],
        "exp": [1.0, 1.0, inf, 0.0, nan, 0.5],
        "log": [-inf, -inf, inf, nan, nan, nan],
        "rcp_iflag": [inf, -inf, 0.0, -0.0, nan, -1.0],
        "sin": [0.0, -0.0, nan, nan, nan, 0.0],
    }
    for column, name in enumerate(names):
        want = [F32.pattern(Fraction(v) if v and math.isfinite(v) else v) for v in expected[name]]
        actual = got[:, column].tolist()
        if name == "sin":
            actual[5], want[5] = actual[5] & 0x7FFFFFFF, 0  # the sign of sin at whole turns is not specified
        assert_same(F32, actual, want, inputs.tolist())
