"""Conversions between integers, float16, bfloat16, float32, float64 and the eight-bit formats."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings

from emulator.small_formats import BF8, FP8, SmallFormat
from emulator.snippets import BF16, F16, F32, F64, assert_same, execute, join64, pair
from emulator.snippets import halves as split_halves
from emulator.values import Words, floats, halves, integers, signed

OLD = np.full(64, 0xA5A5A5A5, np.uint32)


def _saturate(value: Fraction | float, low: int, high: int) -> int:
    """Truncated toward zero, saturated; NaN gives 0."""
    if value != value:
        return 0
    if isinstance(value, float) and math.isinf(value):
        return high if value > 0 else low
    return min(max(math.trunc(value), low), high)


def _unary(name: str, a: Words) -> list[int]:
    return [int(v) for v in execute(f"{name} v20, v10", {"v10": a}, ["v20"])["v20"]]


@settings(max_examples=15, deadline=None)
@given(a=floats())
def test_float_to_integer_saturates(a: Words) -> None:
    a[:6] = [0x4F000000, 0xCF000000, 0x4F7FFFFF, 0x4F800000, 0xBF7FFFFF, 0x5F000000]
    values = [F32.value(int(bits)) for bits in a]
    low, high = -(2**31), 2**31 - 1
    assert _unary("v_cvt_i32_f32_e32", a) == [_saturate(v, low, high) & 0xFFFFFFFF for v in values]
    assert _unary("v_cvt_u32_f32_e32", a) == [_saturate(v, 0, 2**32 - 1) for v in values]
    floors = [v if isinstance(v, float) else Fraction(math.floor(v)) for v in values]
    assert _unary("v_cvt_flr_i32_f32_e32", a) == [_saturate(v, low, high) & 0xFFFFFFFF for v in floors]


@settings(max_examples=15, deadline=None)
@given(a=integers())
def test_integer_to_float_rounds_once(a: Words) -> None:
    values = a.tolist()
    assert _unary("v_cvt_f32_u32_e32", a) == [F32.pattern(Fraction(v)) for v in values]
    assert _unary("v_cvt_f32_i32_e32", a) == [F32.pattern(Fraction(signed(v))) for v in values]
    for byte in range(4):
        expected = [F32.pattern(Fraction(v >> 8 * byte & 255)) for v in values]
        assert _unary(f"v_cvt_f32_ubyte{byte}_e32", a) == expected
    got = execute("v_cvt_f64_i32_e32 v[20:21], v10\nv_cvt_f64_u32_e32 v[22:23], v10", {"v10": a}, ["v[20:23]"])
    words = got["v[20:23]"]
    assert join64(words[:, :2]) == [F64.pattern(Fraction(signed(v))) for v in values]
    assert join64(words[:, 2:]) == [F64.pattern(Fraction(v)) for v in values]
    assert _unary("v_cvt_f16_u16_e32", a) == [F16.pattern(Fraction(v & 0xFFFF)) for v in values]
    assert _unary("v_cvt_f16_i16_e32", a) == [F16.pattern(Fraction(signed(v, 16))) for v in values]


@settings(max_examples=15, deadline=None)
@given(a=halves())
def test_half_precision(a: Words) -> None:
    values = [F16.value(int(bits)) for bits in a]
    assert_same(F32, _unary("v_cvt_f32_f16_e32", a), [F32.pattern(v) for v in values], a.tolist())
    assert _unary("v_cvt_u16_f16_e32", a) == [_saturate(v, 0, 65535) for v in values]
    assert _unary("v_cvt_i16_f16_e32", a) == [_saturate(v, -32768, 32767) & 0xFFFF for v in values]


@settings(max_examples=15, deadline=None)
@given(a=floats(), b=floats())
def test_narrowing_rounds_to_nearest_even(a: Words, b: Words) -> None:
    a[:4] = [0x3F808000, 0x3F818000, 0x477FF000, 0x7F7FFFFF]  # ties of bfloat16, overflow ties
    body = "v_cvt_f16_f32_e32 v20, v10\nv_cvt_pk_bf16_f32 v21, v10, v11\nv_cvt_pk_f16_f32 v22, v10, v11"
    got = execute(body, {"v10": a, "v11": b}, ["v[20:22]"])["v[20:22]"]
    values = [[F32.value(int(bits)) for bits in words] for words in (a, b)]
    assert_same(F16, got[:, 0].tolist(), [F16.pattern(v) for v in values[0]], a.tolist())
    for column, form in ((1, BF16), (2, F16)):
        for half in (0, 1):
            actual = [part[half] for part in split_halves(got[:, column])]
            assert_same(form, actual, [form.pattern(v) for v in values[half]], (a, b)[half].tolist())


def _toward_zero(value: Fraction | float) -> int:
    """float16 pattern rounded toward zero; finite values do not overflow to infinity."""
    if isinstance(value, float):
        return F16.pattern(value)
    nearest = F16.pattern(value)
    result = F16.value(nearest)
    overshoot = math.isinf(float(result)) or abs(float(result)) > abs(float(value))
    return nearest - 1 if overshoot else nearest


@settings(max_examples=15, deadline=None)
@given(a=floats(), b=floats())
def test_packing_toward_zero(a: Words, b: Words) -> None:
    got = execute("v_cvt_pkrtz_f16_f32 v20, v10, v11", {"v10": a, "v11": b}, ["v20"])["v20"]
    for half, words in enumerate((a, b)):
        actual = [part[half] for part in split_halves(got)]
        assert_same(F16, actual, [_toward_zero(F32.value(int(bits))) for bits in words], words.tolist())


@settings(max_examples=15, deadline=None)
@given(low=integers(), high=floats())
def test_double_precision(low: Words, high: Words) -> None:
    # Exponents near those of float32 half of the time, so that rounding and underflow to its denormals are met.
    near = (np.uint32(0x36000000) + high % np.uint32(0x12000000)) | high & np.uint32(0x80000000)
    high = np.where(np.arange(64) % 2 == 0, high, near).astype(np.uint32)
    body = """v_cvt_f32_f64_e32 v20, v[10:11]
    v_cvt_i32_f64_e32 v21, v[10:11]
    v_cvt_u32_f64_e32 v22, v[10:11]
    v_cvt_f64_f32_e32 v[24:25], v11"""
    inputs = {"v[10:11]": pair(low, high), "v23": OLD}
    got = execute(body, inputs, ["v[20:25]"])["v[20:25]"]
    values = [F64.value(bits) for bits in join64(pair(low, high))]
    assert_same(F32, got[:, 0].tolist(), [F32.pattern(v) for v in values])
    assert got[:, 1].tolist() == [_saturate(v, -(2**31), 2**31 - 1) & 0xFFFFFFFF for v in values]
    assert got[:, 2].tolist() == [_saturate(v, 0, 2**32 - 1) for v in values]
    assert_same(F64, join64(got[:, 4:6]), [F64.pattern(F32.value(int(bits))) for bits in high])


@settings(max_examples=15, deadline=None)
@given(a=integers(), b=integers())
def test_packing_integers_saturates(a: Words, b: Words) -> None:
    got = execute("v_cvt_pk_u16_u32 v20, v10, v11\nv_cvt_pk_i16_i32 v21, v10, v11", {"v10": a, "v11": b}, ["v[20:21]"])
    for words, x, y in zip(got["v[20:21]"].tolist(), a.tolist(), b.tolist(), strict=True):
        unsigned = min(x, 65535) | min(y, 65535) << 16
        clipped = [min(max(signed(v), -32768), 32767) & 0xFFFF for v in (x, y)]
        assert words == [unsigned, clipped[0] | clipped[1] << 16]


EIGHT_BIT = {"fp8": FP8, "bf8": BF8}


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_every_eight_bit_code_decodes(name: str) -> None:
    form = EIGHT_BIT[name]
    codes = np.arange(256, dtype=np.uint32).reshape(64, 4)
    packed = codes[:, 0] | codes[:, 1] << 8 | codes[:, 2] << 16 | codes[:, 3] << 24
    lines = [f"v_cvt_f32_{name}_sdwa v{20 + i}, v10 src0_sel:BYTE_{i}" for i in range(4)]
    lines += [f"v_cvt_pk_f32_{name}_e32 v[24:25], v10", f"v_cvt_pk_f32_{name}_sdwa v[26:27], v10 src0_sel:WORD_1"]
    got = execute("\n".join(lines), {"v10": packed.astype(np.uint32)}, ["v[20:27]"])["v[20:27]"]
    expected = [F32.pattern(form.value(code)) for code in range(256)]
    assert_same(F32, got[:, :4].reshape(-1).tolist(), expected)
    assert_same(F32, got[:, 4:].reshape(-1).tolist(), expected)


def _encoded(form: SmallFormat, words: Words, saturate: bool) -> list[int]:
    return [form.encode(F32.value(int(bits)), saturate) for bits in words]


@pytest.mark.parametrize("name", EIGHT_BIT)
@pytest.mark.parametrize("saturate", [False, True])
@settings(max_examples=8, deadline=None)
@given(a=floats(), b=floats())
def test_encoding_eight_bits(name: str, saturate: bool, a: Words, b: Words) -> None:
    form = EIGHT_BIT[name]
    a[: len(form.interesting)] = [F32.pattern(value) for value in form.interesting]
    body = f"""s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), {int(saturate)}
    s_nop 4
    v_cvt_pk_{name}_f32 v20, v10, v11
    v_cvt_pk_{name}_f32 v21, v11, v10 op_sel:[0,0,1]"""
    got = execute(body, {"v10": a, "v11": b, "v20": OLD, "v21": OLD}, ["v[20:21]"])["v[20:21]"]
    first, second = _encoded(form, a, saturate), _encoded(form, b, saturate)
    for lane, (x, y) in enumerate(zip(first, second, strict=True)):
        low, high = int(got[lane, 0]), int(got[lane, 1])
        assert low >> 16 == 0xA5A5
        assert high & 0xFFFF == 0xA5A5
        for code, wanted in ((low & 255, x), (low >> 8 & 255, y), (high >> 16 & 255, y), (high >> 24, x)):
            assert form.same(code, wanted), (hex(int(a[lane])), hex(int(b[lane])), code, wanted)


@pytest.mark.parametrize("name", EIGHT_BIT)
@settings(max_examples=8, deadline=None)
@given(a=floats(), b=integers())
def test_stochastic_rounding_adds_noise_to_the_mantissa(name: str, a: Words, b: Words) -> None:
    form = EIGHT_BIT[name]
    body = "\n".join(f"v_cvt_sr_{name}_f32 v20, v10, v11 op_sel:[0,0,{i & 1},{i >> 1}]\ns_nop 1" for i in range(4))
    got = execute(body, {"v10": a, "v11": b, "v20": OLD}, ["v20"])["v20"]
    for result, bits, noise in zip(got.tolist(), a.tolist(), b.tolist(), strict=True):
        value = F32.value(bits)
        if value == value and not (isinstance(value, float) and math.isinf(value)):
            # AMD's pseudo-code: the sum wraps inside the 23 bits of the mantissa.
            value = F32.value(bits & 0xFF800000 | (bits & 0x7FFFFF) + (noise >> 12) & 0x7FFFFF)
        wanted = form.encode(value, False)
        assert all(form.same(result >> 8 * byte & 255, wanted) for byte in range(4)), (hex(bits), hex(noise))


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("v_cvt_pknorm_i16_f32", lambda v: round(min(max(v, Fraction(-1)), Fraction(1)) * 32767) & 0xFFFF),
        ("v_cvt_pknorm_u16_f32", lambda v: round(min(max(v, Fraction(0)), Fraction(1)) * 65535)),
    ],
)
@settings(max_examples=5, deadline=None)
@given(a=floats())
def test_normalised_integers(name: str, reference: Callable[[Fraction], int], a: Words) -> None:
    got = execute(f"{name} v20, v10, v10", {"v10": a}, ["v20"])["v20"]
    for result, bits in zip(got.tolist(), a.tolist(), strict=True):
        value = F32.value(bits)
        if value != value or value == 0:
            value = Fraction(0)
        clipped = Fraction(min(max(value, -2), 2))
        assert result == reference(clipped) * 0x10001, hex(bits)
