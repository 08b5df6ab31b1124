"""Lane masks as operands, and the instructions that select by them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.isa.result import result_writer
from gfx950_emulator.isa.sdwa import sdwa_source, sdwa_writer
from gfx950_emulator.isa.values import Type, constant_bits, vector_source
from gfx950_emulator.machine.arrays import LANES, Bools, unpack_mask
from gfx950_emulator.machine.registers import register_numbers
from gfx950_emulator.machine.wave_batch import WaveBatch


def lane_mask_source(operand: Operand) -> Callable[[WaveBatch], Bools]:
    """Getter of booleans [n, 64] (or [1, 64]) from an SGPR pair or a constant."""
    if operand.kind == "sgpr":
        index = operand.index
        return lambda batch: batch.read_mask(index)
    if operand.is_constant:
        bits = constant_bits(operand, Type.U64)
        mask = unpack_mask(
            np.array([bits & 0xFFFFFFFF], np.uint32),
            np.array([bits >> 32], np.uint32),
        )
        return lambda batch: mask
    raise UnsupportedInstruction(f"lane mask in a {operand.kind} operand")


def bind(instruction: Instruction) -> Bound | None:
    """Bind v_cndmask_b32."""
    if instruction.mnemonic != "v_cndmask_b32":
        return None
    if instruction.encoding.endswith("dpp"):
        raise UnsupportedInstruction("DPP v_cndmask")
    destination, if_clear, if_set, condition = instruction.operands[:4]
    # Read as float so that negation and absolute value modifiers apply to the sign bit.
    if instruction.encoding == "sdwa":
        clear = sdwa_source(instruction, if_clear, 0, Type.F32)
        chosen = sdwa_source(instruction, if_set, 1, Type.F32)
    else:
        clear, chosen = vector_source(if_clear, Type.F32), vector_source(if_set, Type.F32)
    mask = lane_mask_source(condition)
    write = result_writer(instruction, Type.U32, 0)
    if instruction.encoding == "sdwa":
        write = sdwa_writer(instruction, write)

    def execute(batch: WaveBatch) -> None:
        write(batch, np.where(mask(batch), chosen(batch).view(np.uint32), clear(batch).view(np.uint32)), None)

    return Bound(
        execute,
        operand_mask([if_clear, if_set, condition]) | EXEC_MASK,
        operand_mask([destination]),
        propagate=_select_propagation(execute, instruction, mask),
    )


def _select_propagation(execute: Execute, instruction: Instruction, mask: Callable[[WaveBatch], Bools]) -> Execute:
    """Only the chosen side counts; an undefined condition bit spoils its lane."""
    numbers = [list(register_numbers(operand)) for operand in instruction.operands[:4]]

    def propagate(batch: WaveBatch) -> None:
        if batch.defined is None:
            return execute(batch)
        clear = batch.defined.lanes(numbers[1], batch.sel, batch.n)
        chosen = batch.defined.lanes(numbers[2], batch.sel, batch.n)
        flags = np.where(mask(batch), chosen, clear)
        if len(numbers[3]) == 2:
            low, high = (batch.defined.rows(number)[batch.sel] for number in numbers[3])
            flags = flags & np.concatenate([low, high], axis=1)
        execute(batch)
        batch.defined.set(numbers[0][0], batch.sel, np.broadcast_to(flags, (batch.n, LANES)), batch.active())
        return None

    return propagate
