"""Execution of instruction snippets that LLVM's assembler accepts, and exact references shared by their tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from triton.backends.amd.compiler import assemble_amdgcn

from emulator.kernel_text import Words, kernel_from, run_lanes
from emulator.values import round_fraction, signed
from gfx950_emulator import LaunchRecord, Options, run

NAN = math.nan


@lru_cache(maxsize=8192)
def assemble(body: str) -> bytes:
    """Machine code of a snippet; raises when the text is no legal gfx950 assembly."""
    return bytes(assemble_amdgcn(f"\t.text\nsnippet:\n{body}\n", "gfx950", ""))


def execute(
    body: str,
    inputs: dict[str, npt.NDArray[Any]],
    outputs: list[str],
    lds: int = 0,
    scratch: int = 0,
    options: Options | None = None,
) -> dict[str, Words]:
    """`run_lanes` on a snippet that LLVM assembles, so that no test exercises invented syntax."""
    assemble(body)
    return run_lanes(body, inputs, outputs, lds, scratch, options)


def execute_on_buffers(body: str, buffers: Sequence[npt.NDArray[Any]], lds: int = 0, scratch: int = 0) -> LaunchRecord:
    """Run a snippet on one wave; s[10:11], s[12:13], ... hold the addresses of `buffers`, v0 the lane."""
    assemble(body)
    lines = [f"s_load_dwordx2 s[{10 + 2 * i}:{11 + 2 * i}], s[0:1], {8 * i:#x}" for i in range(len(buffers))]
    text = "\n".join([*lines, "s_waitcnt lgkmcnt(0)", *body.strip().splitlines()])
    return run(kernel_from(text, len(buffers), lds, scratch), None, (1, 1, 1), (64, 1, 1), buffers)


def pair(low: Words, high: Words) -> Words:
    """Values of a register pair, [items, 2]."""
    return np.stack([low, high], 1)


def join64(values: Words) -> list[int]:
    """Unsigned 64-bit integers of register pairs [items, 2]."""
    return [int(high) << 32 | int(low) for low, high in values]


def halves(words: Words) -> list[tuple[int, int]]:
    """(low, high) 16-bit halves of each word."""
    return [(int(word) & 0xFFFF, int(word) >> 16) for word in words]


class Signalling(float):
    """A signalling NaN; arithmetic makes it quiet."""


class Format:
    """An IEEE-style binary format, decoded and encoded with fractions only."""

    def __init__(self, exponent_bits: int, mantissa_bits: int) -> None:
        self.exponent_bits, self.mantissa_bits = exponent_bits, mantissa_bits
        self.bits = 1 + exponent_bits + mantissa_bits
        self.bias = (1 << (exponent_bits - 1)) - 1
        self.top = (1 << exponent_bits) - 1
        largest_fraction = 2 - Fraction(1, 1 << mantissa_bits)
        self.maximum = largest_fraction * Fraction(2) ** self.bias
        self.nan = self.top << mantissa_bits | 1 << (mantissa_bits - 1)
        self.infinity = self.top << mantissa_bits

    def value(self, pattern: int) -> Fraction | float:
        """Exact value; infinities, NaN and -0.0 as floats."""
        sign = -1 if pattern >> (self.bits - 1) & 1 else 1
        exponent = pattern >> self.mantissa_bits & self.top
        mantissa = pattern & ((1 << self.mantissa_bits) - 1)
        if exponent == self.top and mantissa:
            return NAN if mantissa >> (self.mantissa_bits - 1) else Signalling("nan")
        if exponent == self.top:
            return sign * math.inf
        if exponent == 0 and mantissa == 0:
            return Fraction(0) if sign > 0 else -0.0
        significand = mantissa if exponent == 0 else mantissa | 1 << self.mantissa_bits
        power = max(exponent, 1) - self.bias - self.mantissa_bits
        return sign * significand * Fraction(2) ** power

    def pattern(self, value: Fraction | float) -> int:
        """Pattern of a value rounded to nearest even; NaN gives the default quiet NaN."""
        if isinstance(value, float):
            if value != value:
                return self.nan
            if math.isinf(value):
                return self.infinity | (value < 0) << (self.bits - 1)
            if value == 0:
                return int(math.copysign(1, value) < 0) << (self.bits - 1)
            value = Fraction(value)
        rounded = round_fraction(value, self.mantissa_bits, 1 - self.bias, self.maximum)
        sign = int(value < 0) << (self.bits - 1)
        if isinstance(rounded, float):
            return self.infinity | sign
        magnitude = abs(rounded)
        if magnitude == 0:
            return sign
        exponent = max(_floor_log2(magnitude), 1 - self.bias)
        significand = int(magnitude / Fraction(2) ** (exponent - self.mantissa_bits))
        hidden = 1 << self.mantissa_bits
        field = exponent + self.bias if significand >= hidden else 0
        return sign | field << self.mantissa_bits | significand & (hidden - 1)

    def is_nan(self, pattern: int) -> bool:
        """Whether a pattern is any NaN."""
        return pattern & (1 << (self.bits - 1)) - 1 > self.infinity

    def same(self, actual: int, expected: int) -> bool:
        """Equal patterns, all NaN being one value."""
        return self.is_nan(actual) if self.is_nan(expected) else actual == expected


def _floor_log2(value: Fraction) -> int:
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1


F16, BF16, F32, F64 = Format(5, 10), Format(8, 7), Format(8, 23), Format(11, 52)


def fused(a: Fraction | float, b: Fraction | float, c: Fraction | float) -> Fraction | float:
    """a * b + c before rounding: exact for finite operands, IEEE rules for infinities, NaN and signs of zero."""
    special = any(isinstance(v, float) and not math.isfinite(v) for v in (a, b, c))
    if special:
        return _as_float(a) * _as_float(b) + _as_float(c)
    product, total = Fraction(a) * Fraction(b), Fraction(a) * Fraction(b) + Fraction(c)
    if total or product:
        return total if total else Fraction(0)
    zero = math.copysign(1, _as_float(a)) * math.copysign(1, _as_float(b)) * 0.0
    return zero + (_as_float(c) if c == 0 else 0.0)


def _as_float(value: Fraction | float) -> float:
    """A float of the same class and sign, for rules that only look at those."""
    if isinstance(value, float):
        return value
    return 0.0 if value == 0 else math.copysign(1.0, value)


def assert_same(form: Format, actual: Sequence[int], expected: Sequence[int], *inputs: Sequence[int]) -> None:
    """Compare patterns lane by lane; the message names the first lane's inputs."""
    for lane, (got, want) in enumerate(zip(actual, expected, strict=True)):
        if not form.same(int(got), int(want)):
            shown = ", ".join(f"{int(values[lane]):#x}" for values in inputs)
            raise AssertionError(f"lane {lane}: ({shown}) gives {int(got):#x}, expected {int(want):#x}")


def signed_values(words: Words, bits: int = 32) -> list[int]:
    """Two's complement values of all words."""
    return [signed(int(word), bits) for word in words]
