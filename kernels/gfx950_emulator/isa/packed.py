"""Packed instructions (VOP3P): two 16-bit or two 32-bit operations a lane, with per-half operand selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.isa.float_math import fma16, fma32, maximum, maximum_ieee, minimum, minimum_ieee
from gfx950_emulator.isa.result import clamp_unit
from gfx950_emulator.isa.values import Getter, Type, constant_bits, vector_source
from gfx950_emulator.machine.arrays import Array
from gfx950_emulator.machine.registers import register_numbers, vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

F16, F32, U16, I16 = Type.F16, Type.F32, Type.U16, Type.I16


@dataclass(frozen=True)
class PackedOperation:
    kind: Type
    sources: int
    function: Callable[..., Array]


PACKED = {
    "v_pk_add_f32": PackedOperation(F32, 2, np.add),
    "v_pk_mul_f32": PackedOperation(F32, 2, np.multiply),
    "v_pk_fma_f32": PackedOperation(F32, 3, fma32),
    "v_pk_add_f16": PackedOperation(F16, 2, np.add),
    "v_pk_mul_f16": PackedOperation(F16, 2, np.multiply),
    "v_pk_fma_f16": PackedOperation(F16, 3, fma16),
    "v_pk_max_f16": PackedOperation(F16, 2, maximum),
    "v_pk_min_f16": PackedOperation(F16, 2, minimum),
    "v_pk_maximum3_f16": PackedOperation(F16, 3, lambda a, b, c: maximum_ieee(maximum_ieee(a, b), c)),
    "v_pk_minimum3_f16": PackedOperation(F16, 3, lambda a, b, c: minimum_ieee(minimum_ieee(a, b), c)),
    "v_pk_add_u16": PackedOperation(U16, 2, np.add),
    "v_pk_add_i16": PackedOperation(I16, 2, np.add),
    "v_pk_sub_u16": PackedOperation(U16, 2, np.subtract),
    "v_pk_sub_i16": PackedOperation(I16, 2, np.subtract),
    "v_pk_mul_lo_u16": PackedOperation(U16, 2, np.multiply),
    "v_pk_mad_u16": PackedOperation(U16, 3, lambda a, b, c: a * b + c),
    "v_pk_mad_i16": PackedOperation(I16, 3, lambda a, b, c: a * b + c),
    "v_pk_max_u16": PackedOperation(U16, 2, np.maximum),
    "v_pk_min_u16": PackedOperation(U16, 2, np.minimum),
    "v_pk_max_i16": PackedOperation(I16, 2, np.maximum),
    "v_pk_min_i16": PackedOperation(I16, 2, np.minimum),
    "v_pk_lshlrev_b16": PackedOperation(U16, 2, lambda a, b: b << (a & np.uint16(15))),
    "v_pk_lshrrev_b16": PackedOperation(U16, 2, lambda a, b: b >> (a & np.uint16(15))),
    "v_pk_ashrrev_i16": PackedOperation(I16, 2, lambda a, b: b >> (a & np.int16(15))),
}


def bind(instruction: Instruction) -> Bound | None:
    """Bind a packed instruction; None when the mnemonic is not one."""
    if instruction.mnemonic == "v_pk_mov_b32":
        return _bind_move(instruction)
    if instruction.mnemonic == "v_fma_mix_f32":
        return _bind_mix(instruction)
    operation = PACKED.get(instruction.mnemonic)
    if operation is None:
        return None
    sources = instruction.operands[1 : 1 + operation.sources]
    low = [_half(instruction, i, operation.kind, "low") for i in range(operation.sources)]
    high = [_half(instruction, i, operation.kind, "high") for i in range(operation.sources)]
    clamp = instruction.flag("clamp")
    if clamp and not operation.kind.is_float:
        raise UnsupportedInstruction("clamp on a packed integer operation")
    row, wide = vector_index(instruction.operands[0]), operation.kind is F32

    def compute(batch: WaveBatch, getters: list[Getter]) -> Array:
        value = operation.function(*[get(batch) for get in getters])
        return np.ascontiguousarray(clamp_unit(value) if clamp else value)

    def execute(batch: WaveBatch) -> None:
        first, second = compute(batch, low), compute(batch, high)
        if wide:
            batch.write_v(row, first.view(np.uint32))
            batch.write_v(row + 1, second.view(np.uint32))
        else:
            packed = first.view(np.uint16).astype(np.uint32)
            batch.write_v(row, packed | second.view(np.uint16).astype(np.uint32) << np.uint32(16))

    destination = operand_mask([instruction.operands[0]])
    if not wide:
        return Bound(execute, operand_mask(list(sources)) | EXEC_MASK, destination)
    halves = _half_sources(instruction, sources)
    return Bound(execute, _mask_of(halves), destination, propagate=_by_halves(execute, row, halves))


Halves = tuple[list[Operand], list[Operand]]
"""The registers that the low and the high result are made of."""


def _half_sources(instruction: Instruction, sources: tuple[Operand, ...]) -> Halves:
    low = instruction.bits("op_sel", (0,) * 3)
    high = instruction.bits("op_sel_hi", (1,) * 3)
    registers = [(position, operand) for position, operand in enumerate(sources) if operand.is_register]
    return [o.part(low[i]) for i, o in registers], [o.part(high[i]) for i, o in registers]


def _mask_of(halves: Halves) -> int:
    return operand_mask([*halves[0], *halves[1]]) | EXEC_MASK


def _by_halves(execute: Execute, row: int, halves: Halves) -> Execute:
    """Each half is as defined as its own sources: compilers pair two operations where only one result is used."""
    numbers = [[number for operand in half for number in register_numbers(operand)] for half in halves]

    def propagate(batch: WaveBatch) -> None:
        if batch.defined is None:
            return execute(batch)
        flags = [batch.defined.lanes(half, batch.sel, batch.n) for half in numbers]
        active = batch.exec_lanes()
        execute(batch)
        for place, of_half in enumerate(flags):
            batch.defined.set(row + place, batch.sel, of_half, active)
        return None

    return propagate


def _half(instruction: Instruction, position: int, kind: Type, half: str) -> Getter:
    """Getter of the operand half that the low or high result uses, negation included."""
    default = 0 if half == "low" else 1
    selects = instruction.bits("op_sel" if half == "low" else "op_sel_hi", (default,) * 3)
    negations = instruction.bits("neg_lo" if half == "low" else "neg_hi", (0,) * 3)
    operand, select = instruction.operands[1 + position], selects[position]
    if kind is F32:
        part = operand if operand.is_constant else operand.part(select)
        get = vector_source(part, kind)
    elif operand.is_constant:
        # An inline constant fills the low half; the high half of a packed 16-bit operand is 0.
        bits = constant_bits(operand, kind if operand.kind == "float" else Type.U32)
        get = vector_source(Operand("integer", integer=bits >> 16 * select & 0xFFFF), U16)
        get = _as_type(get, kind)
    else:
        get = vector_source(operand, kind, select)
    return (lambda batch: np.negative(get(batch))) if negations[position] and kind.is_float else get


def _as_type(get: Getter, kind: Type) -> Getter:
    return lambda batch: get(batch).view(kind.dtype)


def _bind_mix(instruction: Instruction) -> Bound:
    """A fused multiply-add of float32; sources may be halves of registers (op_sel_hi), which become float32 first."""
    destination, *sources = instruction.operands
    narrow, halves = (instruction.bits(name, (0,) * 3) for name in ("op_sel_hi", "op_sel"))
    getters = [
        vector_source(source, F16 if is_half else F32, half if is_half else 0)
        for source, is_half, half in zip(sources, narrow, halves, strict=True)
    ]
    row, clamp = vector_index(destination), instruction.flag("clamp")

    def execute(batch: WaveBatch) -> None:
        value = fma32(*[get(batch).astype(np.float32) for get in getters])
        batch.write_v(row, np.ascontiguousarray(clamp_unit(value) if clamp else value).view(np.uint32))

    return Bound(execute, operand_mask(sources) | EXEC_MASK, operand_mask([destination]))


def _bind_move(instruction: Instruction) -> Bound:
    destination, first, second = instruction.operands[:3]
    selects = instruction.bits("op_sel", (0, 0))
    parts = [
        vector_source(operand if operand.is_constant else operand.part(select), Type.U32)
        for operand, select in zip((first, second), selects, strict=True)
    ]
    row = vector_index(destination)

    def execute(batch: WaveBatch) -> None:
        low, high = (np.array(get(batch)) for get in parts)
        batch.write_v(row, low)
        batch.write_v(row + 1, high)

    chosen = [
        [operand.part(select)] if operand.is_register else []
        for operand, select in zip((first, second), selects, strict=True)
    ]
    halves: Halves = (chosen[0], chosen[1])
    return Bound(execute, _mask_of(halves), operand_mask([destination]), propagate=_by_halves(execute, row, halves))
