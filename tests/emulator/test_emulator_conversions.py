"""Conversions against torch's types, Python's rounding, and a search over all codes of the small formats."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from emulator.kernel_text import run_lanes
from emulator.values import Words, floats, half_number, halves, number, round_f16, signed
from gfx950_emulator.errors import UnsupportedInstruction

FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
OVERFLOW_CLAMP = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n"


def small_values(name: str) -> list[float]:
    """Values of all 256 (or 16) codes, from torch's own types."""
    if name == "fp4":
        return FP4 + [-v for v in FP4]
    dtype = torch.float8_e4m3fn if name == "fp8" else torch.float8_e5m2
    codes: list[float] = torch.arange(256, dtype=torch.uint8).view(dtype).double().tolist()
    return codes


def nearest_code(value: float, name: str, saturate: bool) -> int:
    """Code of the nearest value, ties to even codes; by exhaustive search in exact arithmetic."""
    half = 8 if name == "fp4" else 128
    table = small_values(name)[:half]
    sign = half if math.copysign(1, value) < 0 else 0
    finite = [code for code, v in enumerate(table) if math.isfinite(v)]
    if value != value:
        return sign | (finite[-1] if name == "fp4" else 0x7F)
    magnitude = abs(value)
    overflow = finite[-1] if saturate or name == "fp4" else (0x7F if name == "fp8" else 0x7C)
    if math.isinf(magnitude):
        return sign | overflow
    exact = Fraction(magnitude)
    best = min(finite, key=lambda code: (abs(Fraction(table[code]) - exact), code & 1))
    largest, step = Fraction(table[finite[-1]]), Fraction(table[finite[-1]]) - Fraction(table[finite[-2]])
    middle = largest + step / 2
    if exact > middle or (exact == middle and finite[-1] % 2):
        best = overflow
    return sign | best


def check_pack(body: str, a: Words, b: Words, name: str, saturate: bool, scale: float = 1.0) -> None:
    actual = run_lanes(body, {"v10": a, "v11": b, "v20": np.full(64, 0xA5A5A5A5, np.uint32)}, ["v20"])["v20"]
    bits = 4 if name == "fp4" else 8
    for lane in range(64):
        expected = 0
        for position, word in enumerate((a, b)):
            value = number(int(word[lane]))
            scaled = value / scale if math.isfinite(value) else value
            expected |= nearest_code(scaled, name, saturate) << bits * position
        assert int(actual[lane]) == (0xA5A5A5A5 & ~((1 << 2 * bits) - 1) | expected), (lane, a[lane], b[lane])


@pytest.mark.parametrize("name", ["fp8", "bf8"])
@settings(max_examples=8, deadline=None)
@given(a=floats(), b=floats())
def test_pack_to_eight_bits(name: str, a: Words, b: Words) -> None:
    body = f"v_cvt_pk_{name}_f32 v20, v10, v11"
    check_pack(body, a, b, name, saturate=False)
    check_pack(OVERFLOW_CLAMP + body, a, b, name, saturate=True)


@pytest.mark.parametrize("name", ["fp8", "bf8", "fp4"])
@pytest.mark.parametrize("scale", [2.0**-5, 1.0, 2.0**9])
@settings(max_examples=5, deadline=None)
@given(a=floats(), b=floats())
def test_scaled_pack(name: str, scale: float, a: Words, b: Words) -> None:
    body = f"v_cvt_scalef32_pk_{name}_f32 v20, v10, v11, s20"
    check_pack(f"s_mov_b32 s20, {np.float32(scale).view(np.uint32):#x}\n{body}", a, b, name, False, scale)


@pytest.mark.parametrize("name", ["fp8", "bf8", "fp4"])
@pytest.mark.parametrize("target", ["f32", "f16", "bf16"])
def test_scaled_unpack_of_every_code(name: str, target: str) -> None:
    codes = np.arange(256, dtype=np.uint32)
    words = (codes | codes[::-1] << np.uint32(8)).astype(np.uint32)
    scale = np.full(256, np.float32(2.0**3)).view(np.uint32)
    register = "v[20:21]" if target == "f32" else "v20"
    body = f"v_cvt_scalef32_pk_{target}_{name} {register}, v10, v11"
    actual = run_lanes(body, {"v10": words, "v11": scale}, [register])[register]
    values = small_values(name)
    bits = 4 if name == "fp4" else 8
    for lane in range(256):
        for position in range(2):
            expected = values[int(words[lane]) >> bits * position & ((1 << bits) - 1)] * 8
            if target == "f32":
                got = number(int(actual[lane, position]))
            else:
                half = int(actual[lane]) >> 16 * position & 0xFFFF
                got = half_number(half) if target == "f16" else number(half << 16)
                if target == "f16" and abs(expected) >= 65520:
                    expected = math.copysign(math.inf, expected)
            assert got == expected or (got != got and expected != expected), (lane, position)


@pytest.mark.parametrize("byte", [0, 1, 2, 3])
def test_op_sel_chooses_the_byte(byte: int) -> None:
    words = np.random.default_rng(byte).integers(0, 2**32, 64, dtype=np.uint64).astype(np.uint32)
    ones = np.full(64, np.float32(1)).view(np.uint32)
    op_sel = f"op_sel:[{byte & 1},{byte >> 1},0]"
    read = run_lanes(
        f"v_cvt_scalef32_pk_f32_fp4 v[20:21], v10, v11 {op_sel}", {"v10": words, "v11": ones}, ["v[20:21]"]
    )
    table = small_values("fp4")
    expected = [[table[int(w) >> 8 * byte + s & 15] for s in (0, 4)] for w in words]
    assert read["v[20:21]"].view(np.float32).tolist() == expected
    values = np.array([np.float32(table[i % 16]) for i in range(64)]).view(np.uint32)
    body = f"v_cvt_scalef32_pk_fp4_f32 v20, v10, v10, v11 op_sel:[0,0,{byte & 1},{byte >> 1}]"
    written = run_lanes(body, {"v10": values, "v11": ones, "v20": words}, ["v20"])["v20"]
    for lane in range(64):
        code = nearest_code(table[lane % 16], "fp4", True)
        assert int(written[lane]) == int(words[lane]) & ~(0xFF << 8 * byte) & 0xFFFFFFFF | (code * 17) << 8 * byte


@settings(max_examples=10, deadline=None)
@given(a=floats(), b=floats())
def test_bfloat16_agrees_with_torch(a: Words, b: Words) -> None:
    actual = run_lanes("v_cvt_pk_bf16_f32 v20, v10, v11", {"v10": a, "v11": b}, ["v20"])["v20"]
    for position, words in enumerate((a, b)):
        rounded = torch.from_numpy(words.view(np.float32).copy()).bfloat16().float().numpy()
        got = (actual >> np.uint32(16 * position) << np.uint32(16)).view(np.float32)
        assert ((got == rounded) | (np.isnan(got) & np.isnan(rounded))).all()


@settings(max_examples=10, deadline=None)
@given(a=floats())
def test_float16_and_its_overflow_mode(a: Words) -> None:
    plain = run_lanes("v_cvt_f16_f32 v20, v10", {"v10": a}, ["v20"])["v20"]
    clamped = run_lanes(OVERFLOW_CLAMP + "v_cvt_f16_f32 v20, v10", {"v10": a}, ["v20"])["v20"]
    for lane, bits in enumerate(a.tolist()):
        value = number(bits)
        if math.isfinite(value):
            expected = round_f16(Fraction(value))
            assert half_number(int(plain[lane])) == expected
            assert half_number(int(clamped[lane])) == max(min(expected, 65504.0), -65504.0)


@settings(max_examples=10, deadline=None)
@given(a=floats(), h=halves())
def test_to_integers_truncates_and_saturates(a: Words, h: Words) -> None:
    body = """v_cvt_i32_f32 v20, v10
    v_cvt_u32_f32 v21, v10
    v_cvt_f32_i32 v22, v10
    v_cvt_f32_u32 v23, v10
    v_cvt_f32_f16 v24, v11"""
    actual = run_lanes(body, {"v10": a, "v11": h}, ["v[20:24]"])["v[20:24]"]
    for lane, bits in enumerate(a.tolist()):
        value = number(bits)
        whole = 0 if value != value else (int(value) if math.isfinite(value) else int(math.copysign(2**40, value)))
        assert signed(int(actual[lane, 0])) == max(min(whole, 2**31 - 1), -(2**31))
        assert int(actual[lane, 1]) == max(min(whole, 2**32 - 1), 0)
        assert number(int(actual[lane, 2])) == float(np.float32(signed(bits)))
        assert number(int(actual[lane, 3])) == float(np.float32(bits))
        widened = half_number(int(h[lane]))
        assert number(int(actual[lane, 4])) == widened or widened != widened


@pytest.mark.parametrize(
    "text",
    ["v_cvt_scalef32_pk32_f32_fp6 v[20:51], v[10:15], v16", "v_cvt_scalef32_sr_fp8_f32 v20, v10, v11, v12"],
)
def test_what_is_left_out_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedInstruction, match="refused") as caught:
        run_lanes(text, {f"v{i}": np.zeros(64, np.uint32) for i in range(10, 17)}, ["v20"])
    assert text in str(caught.value)
