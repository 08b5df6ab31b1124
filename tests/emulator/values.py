"""Interesting register values, and exact arithmetic on them with Python integers and fractions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

Words = npt.NDArray[np.uint32]
LANES = 64
EDGE_INTEGERS = (
    0,
    1,
    2,
    3,
    31,
    32,
    33,
    63,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)
EDGE_FLOATS = (
    0x00000000,
    0x80000000,
    0x3F800000,
    0xBF800000,
    0x3F000000,
    0x00000001,
    0x80000001,
    0x007FFFFF,
    0x00800000,
    0x7F7FFFFF,
    0xFF7FFFFF,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    0xFFC00001,
    0x3F800001,
    0x4B000000,
    0x4B800000,
)
EDGE_HALVES = (0x0000, 0x8000, 0x3C00, 0xBC00, 0x0001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x3C01)


def quieted(values: Words, width: int) -> Words:
    """Float patterns with every NaN quiet; test_emulator_signalling.py has the signalling ones."""
    infinity, quiet = (0x7F800000, 0x400000) if width == 32 else (0x7C00, 0x200)
    nan = (values & np.uint32((1 << (width - 1)) - 1)) > infinity
    return np.where(nan, values | np.uint32(quiet), values)


def _fill(edges: tuple[int, ...], width: int, moderate: bool) -> Callable[[tuple[int, list[int]]], Words]:
    """One value a lane: the drawn special values, then edges, any bits and (for floats) moderate numbers."""

    def fill(drawn: tuple[int, list[int]]) -> Words:
        seed, special = drawn
        rng = np.random.default_rng(seed)
        values = rng.integers(0, 2**width, LANES, dtype=np.uint64).astype(np.uint32)
        chosen = rng.random(LANES)
        values = np.where(chosen < 0.4, rng.choice(np.array(edges, np.uint32), LANES), values)
        if moderate:
            numbers = (rng.standard_normal(LANES) * 2.0 ** rng.integers(-8, 12, LANES)).astype(np.float32)
            bits = numbers.view(np.uint32) if width == 32 else numbers.astype(np.float16).view(np.uint16)
            values = np.where(chosen > 0.75, bits, values)
        values[: len(special)] = special
        return quieted(values.astype(np.uint32), width) if moderate else values.astype(np.uint32)

    return fill


def _lanes(edges: tuple[int, ...], width: int, moderate: bool) -> st.SearchStrategy[Words]:
    special = st.lists(st.one_of(st.sampled_from(edges), st.integers(0, 2**width - 1)), max_size=4)
    return st.tuples(st.integers(0, 2**32 - 1), special).map(_fill(edges, width, moderate))


def integers() -> st.SearchStrategy[Words]:
    """32-bit patterns for 64 lanes, edges often."""
    return _lanes(EDGE_INTEGERS, 32, moderate=False)


def floats() -> st.SearchStrategy[Words]:
    """float32 patterns for 64 lanes: edges, any bits, and values of moderate size."""
    return _lanes(EDGE_FLOATS, 32, moderate=True)


def halves() -> st.SearchStrategy[Words]:
    """float16 patterns for 64 lanes."""
    return _lanes(EDGE_HALVES, 16, moderate=True)


def bits_of(value: float) -> int:
    """float32 pattern of a number."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def number(bits: int) -> float:
    """Value of a float32 pattern."""
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])


def half_number(bits: int) -> float:
    """Value of a float16 pattern."""
    return float(struct.unpack("<e", struct.pack("<H", bits & 0xFFFF))[0])


def signed(value: int, bits: int = 32) -> int:
    """Two's complement value."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def round_fraction(value: Fraction, mantissa: int, minimum_exponent: int, maximum: Fraction) -> Fraction | float:
    """Nearest even value with `mantissa` fraction bits, gradual underflow; infinity beyond the largest value."""
    if value == 0:
        return value
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, minimum_exponent) - mantissa)
    quotient, remainder = divmod(magnitude, step)
    if remainder * 2 > step or (remainder * 2 == step and quotient % 2):
        quotient += 1
    rounded = quotient * step
    if rounded > maximum:
        return float("inf") if value > 0 else float("-inf")
    return rounded if value > 0 else -rounded


def round_f32(value: Fraction) -> float:
    """Correctly rounded float32 of an exact value."""
    return float(round_fraction(value, 23, -126, Fraction(2) ** 128 - Fraction(2) ** 104))


def round_f16(value: Fraction) -> float:
    """Correctly rounded float16 of an exact value."""
    return float(round_fraction(value, 10, -14, Fraction(65504)))


def by_lane(function: Callable[..., Any], *arrays: Iterable[int]) -> list[Any]:
    """Apply a scalar function of Python integers to every lane."""
    return [function(*(int(v) for v in row)) for row in zip(*arrays, strict=True)]


def same_float(actual: int, expected: float) -> bool:
    """Whether a float32 pattern is the expected value, NaN being one value and zeros keeping their sign."""
    if expected != expected:
        return number(actual) != number(actual)
    return actual == bits_of(expected)
