"""Matrix operands for tests: codes with exact sums, and where each element of A, B and D lies in the registers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.kernel_text import Words

Doubles = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint64]
FORMATS = {"fp8": (0, 8, 4, 3), "bf8": (1, 8, 5, 2), "fp6": (2, 6, 2, 3), "bf6": (3, 6, 3, 2), "fp4": (4, 4, 2, 1)}
"""Name to (cbsz/blgp code, bits, exponent bits, mantissa bits)."""


def code_value(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """Value of a finite code, from the definition of the OCP formats."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return float(sign * (2**mantissa_bits + mantissa) * 2.0 ** (exponent - bias - mantissa_bits))


@dataclass(frozen=True)
class Element:
    """How elements are stored: bits of each, and (code, value) choices whose sums stay exact."""

    bits: int
    choices: tuple[tuple[int, float], ...]


def small_format(name: str) -> Element:
    """Codes of a small format with whole or half values up to 8."""
    _, bits, exponent, mantissa = FORMATS[name]
    values = [(c, code_value(c, exponent, mantissa)) for c in range(1 << bits)]
    return Element(bits, tuple((c, v) for c, v in values if abs(v) <= 8 and v * 2 == int(v * 2)))


def _numbers(dtype: type[np.generic], bits: int, shift: int = 0) -> Element:
    words = [(int(np.array(v, dtype).view(f"u{np.dtype(dtype).itemsize}")) >> shift, float(v)) for v in range(-6, 7)]
    return Element(bits, tuple(words))


ELEMENTS = {
    "f32": _numbers(np.float32, 32),
    "f64": _numbers(np.float64, 64),
    "f16": _numbers(np.float16, 16),
    "bf16": _numbers(np.float32, 16, shift=16),
    "i8": _numbers(np.int8, 8),
    **{name: small_format(name) for name in FORMATS},
}


def draw(rng: np.random.Generator, element: Element, rows: int, k: int) -> tuple[Codes, Doubles]:
    """(codes, values), [rows, k]."""
    chosen = rng.integers(0, len(element.choices), (rows, k))
    codes = np.array([c for c, _ in element.choices], np.uint64)
    values = np.array([v for _, v in element.choices])
    return codes[chosen], values[chosen]


def place_of(row: int, k: int, rows: int, depth: int, two_runs: bool) -> tuple[int, int]:
    """(lane, position in the lane) of element k of a row of A or a column of B."""
    groups = 64 // rows
    per_lane = depth // groups
    if not two_runs:
        return k // per_lane * rows + row, k % per_lane
    half, rest = divmod(k, depth // 2)
    group, position = divmod(rest, per_lane // 2)
    return group * rows + row, half * (per_lane // 2) + position


def pack(codes: Codes, bits: int, two_runs: bool) -> Words:
    """Codes [rows, k] as registers [64, n], little endian within a lane."""
    rows, depth = codes.shape
    lanes = [0] * 64
    for row, k in itertools.product(range(rows), range(depth)):
        lane, position = place_of(row, k, rows, depth, two_runs)
        lanes[lane] |= int(codes[row, k]) << bits * position
    count = depth // (64 // rows) * bits // 32
    return np.array([[value >> 32 * i & 0xFFFFFFFF for i in range(count)] for value in lanes], np.uint32)


def result_places(m: int, n: int, double: bool) -> list[tuple[int, int, int, int]]:
    """(row, column, lane, element) of every result."""
    places = []
    for lane, element in itertools.product(range(64), range(m * n // 64)):
        if double:
            row = 4 * element + lane // 16
        elif m == 32:
            row = 8 * (element // 4) + 4 * (lane // 32) + element % 4
        else:
            row = 4 * (lane // 16) + element
        places.append((row, lane % n, lane, element))
    return places


def to_matrix(registers: Words, m: int, kind: str) -> Doubles:
    """Result registers as a matrix [m, m]."""
    dtype = {"f32": np.float32, "i32": np.int32, "f64": np.float64}[kind]
    values = np.ascontiguousarray(registers).view(dtype)
    result = np.zeros((m, m))
    for row, column, lane, element in result_places(m, m, kind == "f64"):
        result[row, column] = values[lane, element]
    return result


def accumulator(rng: np.random.Generator, m: int, kind: str) -> tuple[Words, Doubles]:
    """Random whole numbers as C registers, and as a matrix."""
    dtype = {"f32": np.float32, "i32": np.int32, "f64": np.float64}[kind]
    values = rng.integers(-99, 99, (64, m * m // 64)).astype(dtype)
    registers = np.ascontiguousarray(values).view(np.uint32)
    return registers, to_matrix(registers, m, kind)
