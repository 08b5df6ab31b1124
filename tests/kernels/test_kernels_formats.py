"""Codes, scales and quantisation conventions, against distances and frexp in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4_oracle as oracle
from dsv4_kernels import formats

NAMES = tuple(formats.CONVENTIONS)


def quantize(x: oracle.F32, name: str) -> tuple[oracle.U8, oracle.U8]:
    codes, scale = formats.quantize_columns(torch.from_numpy(x.T.copy()), formats.convention(name))
    return codes.T.numpy(), scale.T.numpy()


@pytest.mark.parametrize(("ties", "minus_zero"), list(itertools.product(("even", "lower"), (True, False))))
def test_every_float_gets_the_nearest_code(ties: formats.Ties, minus_zero: bool) -> None:
    # The encoder looks at the top twelve bits and at whether the rest is zero, so these patterns are all its cases.
    top = np.arange(1 << 12, dtype=np.uint32) << 20
    bits = np.concatenate([top, top | 1, top | 0x80000, top | 0xFFFFF])
    values = bits.view(np.float32)
    finite = np.isfinite(values)
    got = formats.encode_e2m1(torch.from_numpy(values.copy()), ties, minus_zero).numpy()
    expected = [oracle.code_of(float(v), ties == "even", minus_zero) for v in values[finite]]
    assert got[finite].tolist() == expected
    assert (got < 16).all()
    infinite = np.isinf(values)
    assert ((got[infinite] & 7) == 7).all()
    assert ((got[np.isnan(values)] & 7) == 7).all()


def test_encoder_keeps_shape_and_takes_random_floats() -> None:
    bits = np.random.default_rng(3).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = np.concatenate([values[np.isfinite(values)], np.random.default_rng(4).normal(0, 3, 4000)])
    values = values[: len(values) // 4 * 4].astype(np.float32)
    got = formats.encode_e2m1(torch.from_numpy(values.reshape(-1, 2, 2)))
    assert got.shape == (len(values) // 4, 2, 2)
    assert got.flatten().tolist() == [oracle.code_of(float(v), True, True) for v in values]


def test_decode_is_the_table() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16)
    got = formats.decode_e2m1_pairs(packed).view(256, 2)
    expected = [[oracle.value_of(b & 15), oracle.value_of(b >> 4)] for b in range(256)]
    assert got.tolist() == expected
    assert torch.signbit(got[8, 0])


def test_e8m0_bytes_are_powers_of_two() -> None:
    got = formats.decode_e8m0(torch.arange(256, dtype=torch.uint8)).double()
    assert got[:255].tolist() == [2.0 ** (b - 127) for b in range(255)]
    assert torch.isnan(got[255])


@pytest.mark.parametrize("byte", [1, 2, 100, 126, 127, 128, 200, 253])
def test_ceil_e8m0_around_a_power_of_two(byte: int) -> None:
    power = np.float32(2.0 ** (byte - 127))
    x = np.array([np.nextafter(power, np.float32(0)), power, np.nextafter(power, np.float32(np.inf))])
    assert formats.ceil_e8m0(torch.from_numpy(x)).tolist() == [byte, byte, byte + 1]


def test_the_byte_of_every_float_is_its_next_power_of_two() -> None:
    """It follows from the exponent and from whether the mantissa is zero, so these patterns are all its cases."""
    exponent = np.arange(1, 255, dtype=np.uint32) << 23
    mantissas = np.concatenate([[0], 1 << np.arange(23), [0x7FFFFF]]).astype(np.uint32)
    random = np.random.default_rng(5).integers(1 << 23, 0x7F800000, 20_000, dtype=np.uint32)
    bits = np.concatenate([(exponent[:, None] | mantissas).ravel(), random])
    mantissa, power = np.frexp(bits.view(np.float32).astype(np.float64))
    expected = power - (mantissa == 0.5) + 127
    assert formats.ceil_e8m0(torch.from_numpy(bits.view(np.float32).copy())).tolist() == expected.tolist()


def test_ceil_e8m0_of_what_is_not_finite() -> None:
    assert formats.ceil_e8m0(torch.tensor([float("inf"), float("nan")])).tolist() == [255, 255]


@pytest.mark.parametrize("name", NAMES)
def test_zero_group_has_the_published_byte(name: str) -> None:
    codes, scale = quantize(np.zeros((1, 128), np.float32), name)
    assert scale.tolist() == [[oracle.RULES[name].zero_group_byte] * 4]
    assert not codes.any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("magnitude", [1.0, 2.0**-20, 2.0**20, 1e-5, 3e-37, 1e37])
def test_conventions_against_the_oracle(name: str, magnitude: float) -> None:
    rng = np.random.default_rng(int(abs(np.log2(magnitude)) * 8))
    x = (rng.normal(size=(6, 128)) * magnitude).astype(np.float32)
    x[1, :32] = np.tile([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0], 4) * np.float32(magnitude / 8)
    x[2, ::3] = -0.0
    x[3, 32:64] = 0
    codes, scale = quantize(x, name)
    expected_codes, expected_scale = oracle.quantize(x, name)
    assert (scale == expected_scale).all()
    assert (codes == expected_codes).all()


@pytest.mark.parametrize("name", NAMES)
def test_scale_near_powers_of_two(name: str) -> None:
    amax = np.float32(6) * np.float32(2) ** np.arange(-8, 8, dtype=np.float32)
    amax = np.concatenate([np.nextafter(amax, np.float32(0)), amax, np.nextafter(amax, np.float32(np.inf))])
    x = np.zeros((len(amax), 128), np.float32)
    x[:, 64] = -amax
    _, scale = quantize(x, name)
    assert (scale == oracle.quantize(x, name)[1]).all()


def test_reciprocal_and_division_give_the_same_byte_for_every_mantissa() -> None:
    # The sources differ here and it never shows: all mantissas of one binade, as amax of a group each.
    amax = (torch.arange(1 << 23, dtype=torch.int32) | (127 << 23)).view(torch.float32) * 4
    product = formats.ceil_e8m0(amax * formats.FP32_SIXTH)
    assert torch.equal(product, formats.ceil_e8m0(amax / 6))
    assert product.min() == 127
    assert product.max() == 128


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-30, 30),
    name=st.sampled_from(NAMES),
    grid=st.booleans(),
)
def test_conventions_on_random_rows(seed: int, exponent: int, name: str, grid: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-24, 25, (2, 128)) / 4 if grid else rng.normal(size=(2, 128))
    rows = (x * 2.0**exponent).astype(np.float32)
    codes, scale = quantize(rows, name)
    expected_codes, expected_scale = oracle.quantize(rows, name)
    assert (scale == expected_scale).all()
    assert (codes == expected_codes).all()


def test_two_stages_lose_nothing_more_than_one() -> None:
    x = np.random.default_rng(0).normal(size=(50, 128)).astype(np.float32)
    one, two = quantize(x, "aiter"), quantize(x, "rne_v41")
    assert (oracle.dequantize(*one) == oracle.dequantize(*two)).all()
    assert (one[1] != two[1]).any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_groups_are_marked_or_saturate(bad: float) -> None:
    x = np.ones((1, 128), np.float32)
    x[0, 5] = bad
    assert quantize(x, "aiter")[1].tolist() == [[255, 125, 125, 125]]
    codes, scale = quantize(x, "rne_v41")
    assert scale.max() <= 254
    assert codes.max() < 16


def test_e4m3_rounds_to_nearest_and_scales_by_row() -> None:
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(9, 128)).astype(np.float32)) * 50
    x[3] = 0
    values, scale = formats.quantize_e4m3(x)
    assert torch.equal(scale, x.abs().amax(-1).clamp_min(1e-4) / 448)
    # Three mantissa bits: within 1/16 of the value, or half the smallest subnormal 2**-9.
    error = (values.double() * scale.double()[:, None] - x.double()).abs()
    assert (error <= torch.maximum(x.double().abs() / 16, scale.double()[:, None] * 2.0**-10) * (1 + 1e-6)).all()
    assert values.float().abs().max() == 448


def e4m3_values() -> oracle.F64:
    """The finite values of codes 0..126 by the format's definition: 4 exponent bits of bias 7, 3 mantissa bits."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    values: oracle.F64 = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    return values


def test_e4m3_codes_are_the_format_and_every_float_gets_the_nearest() -> None:
    """A float's code follows from its sign, exponent, four top bits of mantissa, and whether the rest is zero (normal
    results) or from its place between two values (subnormal ones): multiples of 2 ** 18 and their neighbours.
    """
    codes = torch.arange(127, dtype=torch.uint8)
    values = e4m3_values()
    assert codes.view(torch.float8_e4m3fn).double().tolist() == values.tolist()
    steps = np.arange(0, (0x43E00000 >> 18) + 1, dtype=np.uint32) << 18
    bits = np.unique(np.concatenate([steps, steps[1:] - 1, steps + 1]))
    x = np.abs(bits.view(np.float32))
    x = x[x <= formats.E4M3_MAX]
    # A row's own maximum sets its scale; beside 448 that is one.
    rows = np.stack([x, np.full_like(x, formats.E4M3_MAX)], 1)
    got, scale = formats.quantize_e4m3(torch.from_numpy(rows))
    assert bool((scale == 1).all())
    distance = np.abs(values[None, :] - x[:, None].astype(np.float64))
    nearest = distance == distance.min(1, keepdims=True)
    even = nearest & ((np.arange(127) % 2 == 0) | (nearest.sum(1, keepdims=True) == 1))
    assert got[:, 0].view(torch.uint8).tolist() == even.argmax(1).tolist()
    negative, _ = formats.quantize_e4m3(torch.from_numpy(-rows))
    assert torch.equal(negative[:, 0].view(torch.uint8), got[:, 0].view(torch.uint8) | 0x80)


def test_unknown_convention_names_the_known() -> None:
    with pytest.raises(ValueError, match=r"convention='fp5': accepted is one of aiter, cuda_c4, rne_v41, deepseek"):
        formats.convention("fp5")
