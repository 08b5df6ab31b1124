"""Floating-point instructions against exact fractions, rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.snippets import F16, F32, F64, Format, Signalling, assert_same, execute, fused, join64
from emulator.values import Words, floats, halves

Value = Fraction | float
ONE = Fraction(1)


def _add(a: Value, b: Value) -> Value:
    return fused(a, ONE, b)


def _mul(a: Value, b: Value) -> Value:
    if a == 0 or b == 0 or any(isinstance(v, float) for v in (a, b)):
        return _real(a) * _real(b)
    return Fraction(a) * Fraction(b)


def _real(value: Value) -> float:
    """Sign and class of a value, enough for products with zeros, infinities and NaN."""
    if isinstance(value, float):
        return value
    return float(value > 0) - float(value < 0) if value else 0.0


def _negate(value: Value) -> Value:
    return -0.0 if isinstance(value, Fraction) and value == 0 else -value


def _order(value: Value) -> tuple[Value, float]:
    """Sort key in which -0 precedes +0."""
    return value, math.copysign(1, value) if isinstance(value, float) else 1.0


def _maximum(a: Value, b: Value) -> Value:
    if isinstance(a, Signalling) or isinstance(b, Signalling):
        return math.nan
    if a != a or b != b:
        return b if a != a else a
    return max(a, b, key=_order)


def _minimum(a: Value, b: Value) -> Value:
    if isinstance(a, Signalling) or isinstance(b, Signalling):
        return math.nan
    if a != a or b != b:
        return b if a != a else a
    return min(a, b, key=_order)


def _median(a: Value, b: Value, c: Value) -> Value:
    if any(v != v for v in (a, b, c)):
        return _minimum(_minimum(a, b), c)
    return sorted((a, b, c), key=_order)[1]


def _rounded(function: Callable[[Fraction], int]) -> Callable[[Value], Value]:
    """An operation to integers that keeps infinities, NaN and the sign of zero."""

    def apply(a: Value) -> Value:
        if isinstance(a, float):
            return a
        result = function(a)
        return Fraction(result) if result else math.copysign(0.0, float(a >= 0) - 0.5)

    return apply


UNARY: dict[str, Callable[[Value], Value]] = {
    "rndne": _rounded(round),
    "floor": _rounded(math.floor),
    "ceil": _rounded(math.ceil),
    "trunc": _rounded(math.trunc),
}
BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, _negate(b)),
    "mul": _mul,
    "max": _maximum,
    "min": _minimum,
}
TERNARY: dict[str, Callable[[Value, Value, Value], Value]] = {
    "fma": fused,
    "max3": lambda a, b, c: _maximum(_maximum(a, b), c),
    "min3": lambda a, b, c: _minimum(_minimum(a, b), c),
    "med3": _median,
}
NARROW = {"f32": (F32, floats()), "f16": (F16, halves())}


def _expected(form: Format, function: Callable[..., Value], *arrays: Words) -> list[int]:
    return [form.pattern(function(*(form.value(int(bits)) for bits in row))) for row in zip(*arrays, strict=True)]


@pytest.mark.parametrize("kind", NARROW)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_one_operand(kind: str, data: st.DataObject) -> None:
    form, patterns = NARROW[kind]
    a = data.draw(patterns)
    body = "\n".join(f"v_{name}_{kind}_e32 v{20 + i}, v10" for i, name in enumerate(UNARY))
    got = execute(body, {"v10": a}, ["v[20:23]"])["v[20:23]"]
    for column, function in enumerate(UNARY.values()):
        assert_same(form, got[:, column].tolist(), _expected(form, function, a), a.tolist())


@pytest.mark.parametrize("kind", NARROW)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_two_operands(kind: str, data: st.DataObject) -> None:
    form, patterns = NARROW[kind]
    a, b = data.draw(patterns), data.draw(patterns)
    a[-1], b[-2] = form.infinity | 1, form.infinity | 3  # signalling NaN, which the drawn values leave out
    body = "\n".join(f"v_{name}_{kind}_e32 v{20 + i}, v10, v11" for i, name in enumerate(BINARY))
    body += f"\nv_subrev_{kind}_e32 v25, v11, v10"
    got = execute(body, {"v10": a, "v11": b}, ["v[20:25]"])["v[20:25]"]
    for column, function in enumerate([*BINARY.values(), BINARY["sub"]]):
        assert_same(form, got[:, column].tolist(), _expected(form, function, a, b), a.tolist(), b.tolist())


@pytest.mark.parametrize("kind", NARROW)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_three_operands(kind: str, data: st.DataObject) -> None:
    form, patterns = NARROW[kind]
    a, b, c = (data.draw(patterns) for _ in range(3))
    a[-1], b[-2], c[-3] = form.infinity | 1, form.infinity | 3, form.infinity | 5
    body = "\n".join(f"v_{name}_{kind} v{20 + i}, v10, v11, v12" for i, name in enumerate(TERNARY))
    if kind == "f32":
        body += "\nv_mov_b32_e32 v24, v12\nv_fmac_f32_e32 v24, v10, v11"
    else:
        body += "\nv_fma_f16 v24, v10, v11, v12"
    got = execute(body, {"v10": a, "v11": b, "v12": c}, ["v[20:24]"])["v[20:24]"]
    for column, function in enumerate([*TERNARY.values(), fused]):
        shown = a.tolist(), b.tolist(), c.tolist()
        assert_same(form, (got[:, column] & (1 << form.bits) - 1).tolist(), _expected(form, function, a, b, c), *shown)


@settings(max_examples=8, deadline=None)
@given(a=floats(), c=floats())
def test_fused_with_a_literal(a: Words, c: Words) -> None:
    body = """v_fmaak_f32 v20, v10, v12, 0x40490fdb
    v_fmamk_f32 v21, v10, 0x3f317218, v12"""
    got = execute(body, {"v10": a, "v12": c}, ["v[20:21]"])["v[20:21]"]
    pi, log2 = F32.value(0x40490FDB), F32.value(0x3F317218)
    assert_same(F32, got[:, 0].tolist(), _expected(F32, lambda x, y: fused(x, y, pi), a, c), a.tolist(), c.tolist())
    assert_same(F32, got[:, 1].tolist(), _expected(F32, lambda x, y: fused(x, log2, y), a, c), a.tolist(), c.tolist())


def _nan_wins(choose: Callable[[Value, Value], Value]) -> Callable[[Value, Value, Value], Value]:
    return lambda a, b, c: math.nan if any(v != v for v in (a, b, c)) else choose(choose(a, b), c)


@settings(max_examples=8, deadline=None)
@given(a=floats(), b=floats(), c=floats())
def test_ieee_2019_extremes_propagate_nan(a: Words, b: Words, c: Words) -> None:
    body = "v_maximum3_f32 v20, v10, v11, v12\nv_minimum3_f32 v21, v10, v11, v12"
    got = execute(body, {"v10": a, "v11": b, "v12": c}, ["v[20:21]"])["v[20:21]"]
    assert_same(F32, got[:, 0].tolist(), _expected(F32, _nan_wins(_maximum), a, b, c))
    assert_same(F32, got[:, 1].tolist(), _expected(F32, _nan_wins(_minimum), a, b, c))


DOUBLES = st.one_of(
    st.floats(width=64).map(lambda value: int(np.float64(value).view(np.uint64))),
    st.sampled_from([0, 1 << 63, 1, 0x7FEFFFFFFFFFFFFF, 0x7FF0000000000000, 0x3FF0000000000001, 0x000FFFFFFFFFFFFF]),
    st.floats(-1e6, 1e6).map(lambda value: int(np.float64(value).view(np.uint64))),
)


def _doubles(data: st.DataObject) -> Words:
    values = data.draw(st.lists(DOUBLES, min_size=5, max_size=13))
    chosen = np.array([values[(3 * i + i // 5) % len(values)] for i in range(64)], np.uint64)
    return chosen.view(np.uint32).reshape(-1, 2)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_double_precision(data: st.DataObject) -> None:
    a, b, c = (_doubles(data) for _ in range(3))
    names = ("add", "mul", "max", "min")
    body = "\n".join(f"v_{name}_f64 v[{20 + 2 * i}:{21 + 2 * i}], v[10:11], v[12:13]" for i, name in enumerate(names))
    body += "\nv_fma_f64 v[28:29], v[10:11], v[12:13], v[14:15]"
    got = execute(body, {"v[10:11]": a, "v[12:13]": b, "v[14:15]": c}, ["v[20:29]"])["v[20:29]"]
    functions: list[Callable[..., Value]] = [*(BINARY[name] for name in names), fused]
    for column, function in enumerate(functions):
        operands = [join64(a), join64(b), *([join64(c)] if function is fused else [])]
        expected = [F64.pattern(function(*(F64.value(bits) for bits in row))) for row in zip(*operands, strict=True)]
        assert_same(F64, join64(got[:, 2 * column : 2 * column + 2]), expected, *operands)
