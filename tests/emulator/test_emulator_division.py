"""The float32 division sequence that LLVM emits, end to end: every quotient correctly rounded."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings

from emulator.kernel_text import run_lanes
from emulator.values import EDGE_FLOATS, Words, floats, number, round_f32, same_float

NAN = math.nan
SEQUENCE = """v_div_scale_f32 v20, s[20:21], v11, v11, v10
v_div_scale_f32 v21, vcc, v10, v11, v10
v_rcp_f32 v22, v20
s_nop 0
v_fma_f32 v23, -v20, v22, 1.0
v_fma_f32 v22, v23, v22, v22
v_mul_f32 v23, v21, v22
v_fma_f32 v24, -v20, v23, v21
v_fma_f32 v23, v24, v22, v23
v_fma_f32 v20, -v20, v23, v21
v_div_fmas_f32 v20, v20, v22, v23
v_div_fixup_f32 v20, v20, v11, v10"""


def quotient(x: float, y: float) -> float:
    """Correctly rounded float32 quotient, IEEE special cases included."""
    if x != x or y != y or (x == 0 and y == 0) or (math.isinf(x) and math.isinf(y)):
        return NAN
    sign = math.copysign(1, x) * math.copysign(1, y)
    if y == 0 or math.isinf(x):
        return sign * math.inf
    if x == 0 or math.isinf(y):
        return sign * 0.0
    return math.copysign(round_f32(Fraction(x) / Fraction(y)), sign)


def check(a: Words, b: Words) -> None:
    """Divide lane by lane and compare bits."""
    actual = run_lanes(SEQUENCE, {"v10": a, "v11": b}, ["v20"])["v20"]
    for x, y, got in zip(a.tolist(), b.tolist(), actual.tolist(), strict=True):
        expected = quotient(number(x), number(y))
        assert same_float(got, expected), (number(x), number(y), hex(got), expected)


@settings(max_examples=15, deadline=None)
@given(a=floats(), b=floats())
def test_division_rounds_correctly(a: Words, b: Words) -> None:
    check(a, b)


def test_division_of_every_pair_of_edge_values() -> None:
    edges = np.array(EDGE_FLOATS, np.uint32)
    pairs = [(x, y) for x in edges for y in edges]
    pairs += [(edges[0], edges[0])] * (-len(pairs) % 64)
    check(np.array([x for x, _ in pairs], np.uint32), np.array([y for _, y in pairs], np.uint32))
