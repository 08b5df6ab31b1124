"""Lane-wise vector instructions (VOP1, VOP2, VOP3) with their SDWA and DPP forms."""

from __future__ import annotations

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa import conversion_ops, float_ops, integer_ops
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.isa.dpp import DppControl, dpp_control, permute_in_batch
from gfx950_emulator.isa.result import result_writer, with_result_modifiers
from gfx950_emulator.isa.sdwa import sdwa_source, sdwa_writer
from gfx950_emulator.isa.values import Getter, vector_source
from gfx950_emulator.isa.vector_operation import OPERATIONS, VectorOperation
from gfx950_emulator.machine.arrays import LANES
from gfx950_emulator.machine.registers import numbers_in, register_numbers
from gfx950_emulator.machine.wave_batch import WaveBatch

TABLES = (integer_ops, float_ops, conversion_ops)
"""Importing these fills OPERATIONS."""


def bind(instruction: Instruction) -> Bound | None:
    """Bind a lane-wise vector instruction; None when the mnemonic is not in the table."""
    operation = OPERATIONS.get(instruction.mnemonic)
    if operation is None:
        return None
    sources = instruction.operands[1 : 1 + len(operation.sources)]
    if operation.accumulates:
        sources = (*sources[: len(operation.sources) - 1], instruction.operands[0])
    if len(sources) != len(operation.sources):
        raise UnsupportedInstruction(f"expected {len(operation.sources)} sources")
    getters = source_getters(instruction, operation)
    selects = instruction.bits("op_sel", (0,) * 4)
    destination_half = selects[len(operation.sources)] if len(selects) > len(operation.sources) else 0
    write = result_writer(instruction, operation.result, destination_half)
    if instruction.encoding == "sdwa":
        write = sdwa_writer(instruction, write)
    function = with_result_modifiers(instruction, operation.result, operation.function)
    partial = _writes_part(instruction, operation)
    reads = operand_mask(list(sources)) | EXEC_MASK
    writes = operand_mask([instruction.operands[0]])
    if not instruction.encoding.endswith("dpp"):

        def execute(batch: WaveBatch) -> None:
            write(batch, function(*[get(batch) for get in getters]), None)

        propagate = partial_propagation(execute, writes) if partial else None
        return Bound(execute, reads, writes, "VALU", propagate=propagate)
    control = dpp_control(instruction)

    def execute_dpp(batch: WaveBatch) -> None:
        first, lanes = permute_in_batch(control, batch, getters[0](batch))
        write(batch, function(first, *[get(batch) for get in getters[1:]]), lanes)

    return Bound(execute_dpp, reads, writes, "VALU", propagate=_dpp_propagation(instruction, control, execute_dpp))


def source_getters(instruction: Instruction, operation: VectorOperation) -> list[Getter]:
    """One getter a source, with op_sel or SDWA selection applied."""
    operands = list(instruction.operands[1:])
    if operation.accumulates:
        operands = [*operands[: len(operation.sources) - 1], instruction.operands[0]]
    selects = instruction.bits("op_sel", (0,) * 4)
    getters = []
    for position, kind in enumerate(operation.sources):
        if instruction.encoding == "sdwa" and position < 2:
            getters.append(sdwa_source(instruction, operands[position], position, kind))
        else:
            getters.append(vector_source(operands[position], kind, selects[position]))
    return getters


def _writes_part(instruction: Instruction, operation: VectorOperation) -> bool:
    if instruction.encoding == "sdwa":
        return instruction.modifiers.get("dst_sel", "DWORD") != "DWORD"
    return operation.result.bytes == 2 and "op_sel" in instruction.modifiers


def partial_propagation(execute: Execute, writes: int) -> Execute:
    """Definedness rule of instructions that write part of a register: all of it counts as defined."""

    def propagate(batch: WaveBatch) -> None:
        execute(batch)
        if batch.defined is not None:
            for number in numbers_in(writes):
                batch.defined.set(number, batch.sel, True, batch.active())

    return propagate


def _dpp_propagation(instruction: Instruction, control: DppControl, execute: Execute) -> Execute:
    """Definedness moves with the lanes of source 0."""
    first, others = list(register_numbers(instruction.operands[1])), instruction.operands[2:]
    other_numbers = [number for operand in others for number in register_numbers(operand)]
    targets = list(register_numbers(instruction.operands[0]))

    def propagate(batch: WaveBatch) -> None:
        if batch.defined is None:
            return execute(batch)
        flags = batch.defined.lanes(first, batch.sel, batch.n)
        moved, lanes = control.permute(flags, batch.exec_lanes())
        if control.zero_invalid:
            valid = np.broadcast_to(control.valid, (batch.n, LANES))
            active = batch.exec_lanes()
            moved = moved | ~(valid if active is None else valid & active[:, control.source])
        moved = moved & batch.defined.lanes(other_numbers, batch.sel, batch.n)
        execute(batch)
        for number in targets:
            batch.defined.set(number, batch.sel, moved, batch.active() & lanes)
        return None

    return propagate
