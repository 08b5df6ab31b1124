"""Shapes, element types and register layouts of matrix instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa.small_floats import BF6, BF8, FP4, FP6, FP8, SmallFloat
from gfx950_emulator.machine.arrays import I64, LANE, LANES, Array

_NAME = re.compile(r"v_mfma_(?:(scale)_)?(f32|i32|f64)_(\d+)x(\d+)x(\d+)_(?:(\d+)b_)?(\w+)$")
F8F6F4: dict[int, SmallFloat] = {0: FP8, 1: BF8, 2: FP6, 3: BF6, 4: FP4}
"""Formats by the value of cbsz (A) and blgp (B)."""
ELEMENT_BITS = {"bf16": 16, "f16": 16, "f32": 32, "i8": 8, "f64": 64}
_NAMED = {"fp8": FP8, "bf8": BF8}
SCALE_BLOCK = 32
"""Elements along k that share one E8M0 scale."""


@dataclass(frozen=True)
class MatrixShape:
    """D[m, n] = A[m, k] B[k, n] + C. Lane l holds row (or column) l % m and part l // m of k."""

    result: str
    m: int
    n: int
    k: int
    elements: tuple[str | SmallFloat, str | SmallFloat]
    """Element types of A and B: a name, or a small format."""
    f8f6f4: bool
    scaled: bool

    @property
    def groups(self) -> int:
        """Lane groups that divide k."""
        return LANES // self.m

    @property
    def values_per_lane(self) -> int:
        """Elements of A (and of B) that one lane holds."""
        return self.k // self.groups

    @property
    def results_per_lane(self) -> int:
        return self.m * self.n // LANES

    def operand_registers(self, which: int) -> int:
        """32-bit registers of A (0) or B (1)."""
        element = self.elements[which]
        bits = element.bits if isinstance(element, SmallFloat) else ELEMENT_BITS[element]
        return self.values_per_lane * bits // 32


def shape_of(instruction: Instruction) -> MatrixShape:
    """Decode mnemonic and modifiers; raises UnsupportedInstruction for shapes that are left out."""
    match = _NAME.match(instruction.mnemonic)
    if match is None:
        raise UnsupportedInstruction("matrix instruction is not implemented (sparse forms are left out)")
    scaled, result, m, n, k, blocks, kind = match.groups()
    if blocks:
        raise UnsupportedInstruction("matrix instructions of several blocks are left out")
    if kind == "f8f6f4":
        codes = instruction.number("cbsz"), instruction.number("blgp")
        if any(code not in F8F6F4 for code in codes):
            raise UnsupportedInstruction(f"matrix formats cbsz={codes[0]} blgp={codes[1]}")
        elements: tuple[str | SmallFloat, str | SmallFloat] = (F8F6F4[codes[0]], F8F6F4[codes[1]])
    else:
        if any(instruction.number(name) for name in ("cbsz", "abid", "blgp")):
            raise UnsupportedInstruction("block broadcast or lane-group modifiers on a matrix instruction")
        elements = _elements(kind)
    return MatrixShape(result, int(m), int(n), int(k), elements, kind == "f8f6f4", scaled is not None)


def _elements(kind: str) -> tuple[str | SmallFloat, str | SmallFloat]:
    if kind in ELEMENT_BITS:
        return kind, kind
    first, _, second = kind.partition("_")
    if first in _NAMED and second in _NAMED:
        return _NAMED[first], _NAMED[second]
    raise UnsupportedInstruction(f"matrix element type {kind}")


def result_layout(shape: MatrixShape) -> tuple[I64, I64]:
    """(row, column) of each result element, [results_per_lane, 64 lanes].

    Rows come in runs of four per lane group; float64 in runs of one.
    """
    run = 1 if shape.result == "f64" else 4
    element = np.arange(shape.results_per_lane)[:, None]
    groups = LANES // shape.n
    row = element // run * run * groups + (LANE // shape.n)[None, :] * run + element % run
    column = np.broadcast_to((LANE % shape.n)[None, :], row.shape)
    return row, column


def to_result_layout(product: Array, shape: MatrixShape) -> Array:
    """[n, m, n] to [n, results_per_lane, 64], as `result_layout` says."""
    run = 1 if shape.result == "f64" else 4
    groups = LANES // shape.n
    parts = product.reshape(len(product), shape.results_per_lane // run, groups, run, shape.n)
    return parts.transpose(0, 1, 3, 2, 4).reshape(len(product), shape.results_per_lane, LANES)
