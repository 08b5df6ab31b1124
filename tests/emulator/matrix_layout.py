"""Matrix operands in registers: element encodings and the lane layout, written out element by element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from emulator.small_formats import BF8, FP4, FP8, SmallFormat
from emulator.snippets import BF16, F16, F32, F64, Format
from emulator.values import Words

Ints = npt.NDArray[np.int64]
Encode = Callable[[int], int]


def _encoder(form: Format | SmallFormat) -> Encode:
    table = {}
    for value in range(-8, 9):
        exact = Fraction(value)
        table[value] = form.encode(exact, True) if isinstance(form, SmallFormat) else form.pattern(exact)
    return table.__getitem__


@dataclass(frozen=True)
class Element:
    """An element type: its width, how integers are encoded, and which integers it holds exactly."""

    bits: int
    encode: Encode
    choices: tuple[int, ...]


_SMALL = (-3, -2, -1, 0, 1, 2, 3)
ELEMENTS = {
    "f16": Element(16, _encoder(F16), _SMALL),
    "bf16": Element(16, _encoder(BF16), _SMALL),
    "f32": Element(32, _encoder(F32), _SMALL),
    "xf32": Element(32, _encoder(F32), _SMALL),
    "f64": Element(64, _encoder(F64), _SMALL),
    "i8": Element(8, lambda value: value & 255, (-128, -5, -1, 0, 1, 77, 127)),
    "fp8": Element(8, _encoder(FP8), _SMALL),
    "bf8": Element(8, _encoder(BF8), _SMALL),
    "fp4": Element(4, _encoder(FP4), (-6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6)),
}
FORMATS = {"fp8": 0, "bf8": 1, "fp4": 4}
"""cbsz and blgp of the mixed-format instructions."""


def random_matrix(element: Element, rows: int, columns: int, seed: int) -> Ints:
    """Integers that the element type holds exactly."""
    return np.random.default_rng(seed).choice(np.array(element.choices, np.int64), (rows, columns))


def pack(matrix: Ints, element: Element, order: npt.NDArray[np.int64]) -> Words:
    """Registers [64, words] of A (or of B transposed); `order[group, i]` is the k of a lane's element i."""
    rows = matrix.shape[0]
    words = order.shape[1] * element.bits // 32
    packed = np.zeros((64, words), np.uint64)
    for lane in range(64):
        for position, k in enumerate(order[lane // rows]):
            code = element.encode(int(matrix[lane % rows, k]))
            for part in range(max(1, element.bits // 32)):
                bit = position * element.bits + 32 * part
                packed[lane, bit // 32] |= np.uint64((code >> 32 * part & 0xFFFFFFFF) << bit % 32)
    return packed.astype(np.uint32)


def k_order(rows: int, k: int, eight_bit_mixed: bool = False) -> npt.NDArray[np.int64]:
    """Which k each lane group holds: consecutive runs; eight-bit operands of f8f6f4 hold two runs of 16."""
    groups = 64 // rows
    per_lane = k // groups
    if not eight_bit_mixed:
        return np.arange(k).reshape(groups, per_lane)
    half = k // 2
    runs = np.arange(half).reshape(groups, per_lane // 2)
    return np.concatenate([runs, runs + half], axis=1)


def unpack(registers: Words, m: int, n: int, run: int = 4) -> npt.NDArray[np.uint32]:
    """[64, results] to [m, n]: rows come in runs of four for each lane group, columns are lanes."""
    matrix = np.zeros((m, n), np.uint32)
    groups = 64 // n
    for lane in range(64):
        for result in range(registers.shape[1]):
            row = result // run * run * groups + lane // n * run + result % run
            matrix[row, lane % n] = registers[lane, result]
    return matrix
