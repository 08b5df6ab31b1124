"""Matrix instructions: v_mfma_* and v_mfma_scale_*.

Numerics (`Options.mfma`): `wide` forms the products of the decoded operands, their scales applied, in float64,
adds C and rounds once; `sequential` is a chain of float32 fused multiply-adds in k order. Silicon's order and
intermediate rounding are not published: results agree where all partial sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.isa.bound import Bound, Execute, operand_mask
from gfx950_emulator.isa.float_math import fma32
from gfx950_emulator.isa.mfma_operands import (
    block_by_scale,
    decode_elements,
    decode_scales,
    order_by_k,
    read_registers,
)
from gfx950_emulator.isa.mfma_shape import SCALE_BLOCK, MatrixShape, result_layout, shape_of, to_result_layout
from gfx950_emulator.isa.values import Type, constant_bits, vector_source
from gfx950_emulator.machine.arrays import LANES, Array, all_along
from gfx950_emulator.machine.registers import register_numbers, vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

Scales = Callable[[WaveBatch], tuple[Array, Array]]


def bind(instruction: Instruction) -> Bound | None:
    """Bind a matrix instruction; None when the mnemonic is not one."""
    if not instruction.mnemonic.startswith(("v_mfma", "v_smfmac")):
        return None
    shape = shape_of(instruction)
    destination, a, b, c = instruction.operands[:4]
    _check_widths(shape, destination, a, b, c)
    scales = _scales(instruction, shape) if shape.scaled else None
    accumulator = _accumulator(c, shape)
    layout = result_layout(shape)
    row = vector_index(destination)
    words = destination.count

    def execute(batch: WaveBatch) -> None:
        left, right = _operand(batch, a, shape, 0), _operand(batch, b, shape, 1)
        added = accumulator(batch)
        if batch.options.mfma == "sequential" and shape.result == "f32":
            result = _sequential(shape, left, right, scales(batch) if scales else None, added, layout)
        else:
            product = _wide_product(shape, left, right, scales(batch) if scales else None)
            result = _round(shape, to_result_layout(product, shape), added)
        bits = np.ascontiguousarray(result).view(np.uint32).reshape(batch.n, -1, LANES, words // len(layout[0]))
        batch.v[row : row + words, batch.sel] = bits.transpose(1, 3, 0, 2).reshape(words, batch.n, LANES)

    return Bound(
        execute,
        operand_mask(list(instruction.operands[1:])),
        operand_mask([destination]),
        "MFMA",
        propagate=_propagation(execute, instruction, shape, layout),
    )


def _check_widths(shape: MatrixShape, destination: Operand, a: Operand, b: Operand, c: Operand) -> None:
    result = shape.results_per_lane * (2 if shape.result == "f64" else 1)
    needed = ((destination, result), (a, shape.operand_registers(0)), (b, shape.operand_registers(1)), (c, result))
    for operand, count in needed:
        if not operand.is_constant and operand.count != count:
            raise UnsupportedInstruction(f"operand of {operand.count} registers where {count} are expected")


def _operand(batch: WaveBatch, operand: Operand, shape: MatrixShape, which: int) -> Array:
    """Decoded values [n, 64, values a lane]."""
    first = vector_index(operand)
    registers = batch.v[first : first + operand.count, batch.sel]
    return decode_elements(read_registers(registers), shape.elements[which])


def _scales(instruction: Instruction, shape: MatrixShape) -> Scales:
    """Getter of the scales of A and B, [n, k / 32, m] each; the byte is op_sel + 2 * op_sel_hi."""
    low, high = instruction.bits("op_sel", (0, 0, 0)), instruction.bits("op_sel_hi", (1, 1, 0))
    getters = [vector_source(operand, Type.U32) for operand in instruction.operands[4:6]]

    def read(batch: WaveBatch) -> tuple[Array, Array]:
        registers = (np.broadcast_to(get(batch), (batch.n, LANES)) for get in getters)
        a, b = (decode_scales(r, low[i] + 2 * high[i], shape) for i, r in enumerate(registers))
        return a, b

    return read


def _accumulator(c: Operand, shape: MatrixShape) -> Callable[[WaveBatch], Array]:
    """Getter of C in result layout, [n, results_per_lane, 64] of the result's type."""
    kind = {"f32": Type.F32, "i32": Type.I32, "f64": Type.F64}[shape.result]
    if c.is_constant:
        value = np.array([[[constant_bits(c, kind)]]], f"u{kind.bytes}").view(kind.dtype)
        return lambda batch: value
    first, count = vector_index(c), c.count

    def read(batch: WaveBatch) -> Array:
        registers = batch.v[first : first + count, batch.sel].transpose(1, 0, 2)
        if kind.bytes == 4:
            return registers.view(kind.dtype)
        low, high = registers[:, ::2].astype(np.uint64), registers[:, 1::2].astype(np.uint64)
        return (low | high << np.uint64(32)).view(kind.dtype)

    return read


def _wide_product(shape: MatrixShape, left: Array, right: Array, scales: tuple[Array, Array] | None) -> Array:
    """A B in float64, [n, m, n]."""
    if shape.f8f6f4:
        a = block_by_scale(left, shape, shape.elements[0])
        b = block_by_scale(right, shape, shape.elements[1])
        product = np.matmul(a, b.transpose(0, 1, 3, 2)).astype(np.float64)
        if scales is not None:
            product *= scales[0][:, :, :, None]
            product *= scales[1][:, :, None, :]
        return np.asarray(product.sum(1))
    # Lane groups as they lie: the order of a float64 sum matters less than the one rounding that follows.
    a = left.reshape(len(left), shape.groups, shape.m, -1)
    b = right.reshape(len(right), shape.groups, shape.n, -1)
    return np.asarray(np.matmul(a, b.transpose(0, 1, 3, 2)).sum(1))


def _round(shape: MatrixShape, product: Array, added: Array) -> Array:
    if shape.result == "i32":
        return (product.astype(np.int64) + added).astype(np.int32)
    if shape.result == "f64":
        return product + added
    return (product + added.astype(np.float64)).astype(np.float32)


def _sequential(
    shape: MatrixShape,
    left: Array,
    right: Array,
    scales: tuple[Array, Array] | None,
    added: Array,
    layout: tuple[Array, Array],
) -> Array:
    """Chain of float32 fused multiply-adds over k, in result layout."""
    a, b = order_by_k(left, shape, shape.elements[0]), order_by_k(right, shape, shape.elements[1])
    a, b = a.astype(np.float64), b.astype(np.float64)
    if scales is not None:
        a = a * np.repeat(scales[0].transpose(0, 2, 1), SCALE_BLOCK, 2)
        b = b * np.repeat(scales[1].transpose(0, 2, 1), SCALE_BLOCK, 2)
    rows, columns = layout
    total = np.broadcast_to(added, (len(a), *rows.shape)).astype(np.float32)
    for k in range(shape.k):
        total = fma32(a[:, rows, k].astype(np.float32), b[:, columns, k].astype(np.float32), total)
    return total


def _propagation(
    execute: Execute, instruction: Instruction, shape: MatrixShape, layout: tuple[Array, Array]
) -> Execute:
    """A result is defined when its row of A, its column of B, their scales and its C are."""
    destination, a, b, c = instruction.operands[:4]
    sides = [[a], [b]]
    for side, scale in zip(sides, instruction.operands[4:6], strict=False):
        side.append(scale)
    per_result = destination.count // shape.results_per_lane

    def propagate(batch: WaveBatch) -> None:
        if batch.defined is None:
            return execute(batch)
        known = []
        for side in sides:
            numbers = [number for operand in side for number in register_numbers(operand)]
            lanes = batch.defined.lanes(numbers, batch.sel, batch.n)
            known.append(all_along(lanes.reshape(batch.n, shape.groups, shape.m), 1))
        flags = known[0][:, layout[0]] & known[1][:, layout[1]]
        if not c.is_constant:
            for position in range(shape.results_per_lane):
                first = vector_index(c) + per_result * position
                flags[:, position] &= batch.defined.lanes(list(range(first, first + per_result)), batch.sel, batch.n)
        execute(batch)
        for offset, number in enumerate(register_numbers(destination)):
            batch.defined.set(number, batch.sel, flags[:, offset // per_result])
        return None

    return propagate
