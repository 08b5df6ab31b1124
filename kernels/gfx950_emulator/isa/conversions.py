"""Conversions that depend on MODE.FP16_OVFL or write part of a register: f16, fp8 and bf8, plain and stochastic."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.isa.result import result_writer, with_result_modifiers
from gfx950_emulator.isa.sdwa import sdwa_source, sdwa_writer
from gfx950_emulator.isa.small_floats import BF8, FP8, SmallFloat
from gfx950_emulator.isa.values import Type, vector_source
from gfx950_emulator.isa.vector import partial_propagation
from gfx950_emulator.machine.arrays import Array, f32_bits
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

FORMATS = {"fp8": FP8, "bf8": BF8}
_F16_MAX = 65504.0


def bind(instruction: Instruction) -> Bound | None:
    """Bind a conversion of this family; None when the mnemonic is not one."""
    name = instruction.mnemonic
    if name == "v_cvt_f16_f32":
        return _bind_f16(instruction)
    if match := re.match(r"v_cvt_pk_(fp8|bf8)_f32$", name):
        return _bind_pack(instruction, FORMATS[match[1]])
    if match := re.match(r"v_cvt_sr_(fp8|bf8)_f32$", name):
        return _bind_stochastic(instruction, FORMATS[match[1]])
    if match := re.match(r"v_cvt_f32_(fp8|bf8)$", name):
        return _bind_unpack_one(instruction, FORMATS[match[1]])
    if match := re.match(r"v_cvt_pk_f32_(fp8|bf8)$", name):
        return _bind_unpack_pair(instruction, FORMATS[match[1]])
    return None


def clamps(batch: WaveBatch) -> Array:
    """FP16_OVFL of the group, [n, 1]."""
    return batch.fp16_overflow_clamps[batch.sel][:, None]


def _bind_f16(instruction: Instruction) -> Bound:
    operand = instruction.operands[1]
    get = (
        sdwa_source(instruction, operand, 0, Type.F32)
        if instruction.encoding == "sdwa"
        else vector_source(operand, Type.F32)
    )
    convert = with_result_modifiers(instruction, Type.F16, lambda a: a.astype(np.float16))
    selects = instruction.bits("op_sel", (0, 0))
    write = result_writer(instruction, Type.F16, selects[1])
    if instruction.encoding == "sdwa":
        write = sdwa_writer(instruction, write)

    def execute(batch: WaveBatch) -> None:
        value = get(batch)
        half = convert(value)
        clamped = np.clip(half, -_F16_MAX, _F16_MAX).astype(np.float16)
        overflowed = np.isinf(half) & np.isfinite(value) & clamps(batch)
        write(batch, np.where(overflowed, clamped, half), None)

    return Bound(execute, operand_mask([operand]) | EXEC_MASK, operand_mask([instruction.operands[0]]))


def insert_bits(instruction: Instruction, width: int, position: int, compute: Callable[[WaveBatch], Array]) -> Execute:
    """Execution that replaces `width` bits of the destination, at `position` times that width."""
    row = vector_index(instruction.operands[0])
    mask = np.uint32(((1 << width) - 1) << (width * position))
    shift = np.uint32(width * position)

    def execute(batch: WaveBatch) -> None:
        value = compute(batch)
        batch.write_v(row, batch.v[row][batch.sel] & ~mask | value << shift & mask)

    return execute


def partial_bound(instruction: Instruction, sources: int, execute: Execute) -> Bound:
    """A Bound for an instruction that writes part of its destination."""
    writes = operand_mask([instruction.operands[0]])
    reads = operand_mask(list(instruction.operands[1 : 1 + sources])) | EXEC_MASK
    return Bound(execute, reads, writes, propagate=partial_propagation(execute, writes))


def _bind_pack(instruction: Instruction, form: SmallFloat) -> Bound:
    first, second = (vector_source(operand, Type.F32) for operand in instruction.operands[1:3])
    high = instruction.bits("op_sel", (0,) * 3)[2]

    def compute(batch: WaveBatch) -> Array:
        saturate = clamps(batch)
        return form.encode(first(batch), saturate) | form.encode(second(batch), saturate) << np.uint32(8)

    return partial_bound(instruction, 2, insert_bits(instruction, 16, high, compute))


def _bind_stochastic(instruction: Instruction, form: SmallFloat) -> Bound:
    value, random = vector_source(instruction.operands[1], Type.F32), vector_source(instruction.operands[2], Type.U32)
    selects = instruction.bits("op_sel", (0,) * 4)

    def compute(batch: WaveBatch) -> Array:
        bits = f32_bits(np.broadcast_to(value(batch), (batch.n, 64)))
        mantissa = (bits & np.uint32(0x7FFFFF)) + (random(batch) >> np.uint32(12))
        noisy = (bits & np.uint32(0xFF800000) | mantissa & np.uint32(0x7FFFFF)).view(np.float32)
        return form.encode(np.where(np.isfinite(bits.view(np.float32)), noisy, bits.view(np.float32)), clamps(batch))

    return partial_bound(instruction, 2, insert_bits(instruction, 8, selects[2] | selects[3] << 1, compute))


def _source_byte(instruction: Instruction) -> int:
    if instruction.encoding == "sdwa":
        return int(str(instruction.modifiers.get("src0_sel", "BYTE_0")).removeprefix("BYTE_"))
    selects = instruction.bits("op_sel", (0, 0))
    return selects[0] | selects[1] << 1


def _bind_unpack_one(instruction: Instruction, form: SmallFloat) -> Bound:
    get, row = vector_source(instruction.operands[1], Type.U32), vector_index(instruction.operands[0])
    shift, table = np.uint32(8 * _source_byte(instruction)), form.table.astype(np.float32)

    def execute(batch: WaveBatch) -> None:
        batch.write_v(row, table[get(batch) >> shift & np.uint32(255)].view(np.uint32))

    return Bound(execute, operand_mask([instruction.operands[1]]) | EXEC_MASK, operand_mask([instruction.operands[0]]))


def _bind_unpack_pair(instruction: Instruction, form: SmallFloat) -> Bound:
    get, row = vector_source(instruction.operands[1], Type.U32), vector_index(instruction.operands[0])
    word = instruction.bits("op_sel", (0, 0))[0]
    if instruction.encoding == "sdwa":
        word = int(str(instruction.modifiers.get("src0_sel", "WORD_0")) == "WORD_1")
    table = form.table.astype(np.float32)

    def execute(batch: WaveBatch) -> None:
        bits = get(batch) >> np.uint32(16 * word)
        low, high = table[bits & np.uint32(255)], table[bits >> np.uint32(8) & np.uint32(255)]
        batch.write_v(row, low.view(np.uint32))
        batch.write_v(row + 1, high.view(np.uint32))

    return Bound(execute, operand_mask([instruction.operands[1]]) | EXEC_MASK, operand_mask([instruction.operands[0]]))
