"""Scalar arithmetic and logic (SOP1, SOP2, SOPK)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import EXEC, Operand
from gfx950_emulator.isa.bound import EXEC_MASK, SCC_MASK, Bound, operand_mask
from gfx950_emulator.isa.propagation import bitwise_mask
from gfx950_emulator.isa.scalar_tables import BINARY, SAVE_EXEC, UNARY, ScalarOperation
from gfx950_emulator.isa.values import scalar32, scalar64
from gfx950_emulator.machine.arrays import Array
from gfx950_emulator.machine.wave_batch import WaveBatch

Read = Callable[[WaveBatch], Array]
_SET_BIT = re.compile(r"s_bitset([01])_b(32|64)$")


@dataclass(frozen=True)
class _Destination:
    """Where a scalar result goes."""

    index: int
    wide: bool

    def write(self, batch: WaveBatch, value: Array) -> None:
        value = np.broadcast_to(value, (batch.n,))
        if self.wide:
            batch.write_s64(self.index, value.view(np.uint64))
        else:
            batch.write_s(self.index, value)


def reader(operand: Operand, wide: bool) -> Read:
    """Getter of uint32 or uint64 [n] (or [1])."""
    return scalar64(operand) if wide else scalar32(operand)


def bind(instruction: Instruction) -> Bound | None:
    """Bind a scalar operation; None for other mnemonics."""
    name = instruction.mnemonic
    if name in UNARY:
        return _bind(instruction, UNARY[name], instruction.operands[1:2])
    if name in BINARY:
        return _bind(instruction, BINARY[name], instruction.operands[1:3])
    if name.endswith("k_i32") and name[:-5] in ("s_mov", "s_add", "s_mul", "s_cmov"):
        return _bind_immediate(instruction)
    if name.endswith("_saveexec_b64") and name in SAVE_EXEC:
        return _bind_save_exec(instruction)
    if name.startswith(("s_cselect", "s_cmov")):
        return _bind_select(instruction)
    if match := _SET_BIT.match(name):
        return _bind_set_bit(instruction, match[1] == "1", match[2] == "64")
    return None


def _exec_sink(destination: Operand, reads: int) -> tuple[tuple[int, str], ...]:
    writes_exec = destination.kind == "sgpr" and destination.index in (EXEC, EXEC + 1)
    return ((reads & ~EXEC_MASK, "EXEC"),) if writes_exec else ()


def _bind(instruction: Instruction, operation: ScalarOperation, sources: tuple[Operand, ...]) -> Bound:
    destination = instruction.operands[0]
    reads = operand_mask(list(sources)) | (SCC_MASK if operation.carry_in else 0)
    writes = operand_mask([destination]) | (SCC_MASK if operation.scc else 0)
    getters = [reader(operand, wide) for operand, wide in zip(sources, operation.wide_sources, strict=True)]
    target = _Destination(destination.index, operation.wide_result)
    function, flag, carry_in = operation.function, operation.scc, operation.carry_in

    def execute(batch: WaveBatch) -> None:
        values = [get(batch) for get in getters]
        if carry_in:
            values.append(batch.scc[batch.sel])
        result = function(*values)
        if flag is not None:
            batch.scc[batch.sel] = flag(result, *values)
        target.write(batch, result)

    propagate = bitwise_mask(instruction, execute)
    sinks = () if propagate else _exec_sink(destination, reads)
    return Bound(execute, reads, writes, "SALU", sinks, propagate)


def _signed16(operand: Operand) -> np.uint32:
    value = operand.integer & 0xFFFF
    return np.uint32((value - 0x10000 if value & 0x8000 else value) & 0xFFFFFFFF)


def _bind_immediate(instruction: Instruction) -> Bound:
    destination, constant = instruction.operands[0], _signed16(instruction.operands[1])
    name, index = instruction.mnemonic, destination.index
    get = scalar32(destination) if name != "s_movk_i32" else None

    def execute(batch: WaveBatch) -> None:
        if get is None:
            batch.write_s(index, constant)
            return
        old = get(batch)
        if name == "s_addk_i32":
            total = old + constant
            batch.scc[batch.sel] = ((~(old ^ constant) & (old ^ total)) >> np.uint32(31)) != 0
            batch.write_s(index, total)
        elif name == "s_mulk_i32":
            batch.write_s(index, old * constant)
        else:
            batch.write_s(index, np.where(batch.scc[batch.sel], constant, old))

    reads = 0 if get is None else operand_mask([destination])
    reads |= SCC_MASK if name == "s_cmovk_i32" else 0
    writes = operand_mask([destination]) | (SCC_MASK if name == "s_addk_i32" else 0)
    return Bound(execute, reads, writes, "SALU")


def _bind_save_exec(instruction: Instruction) -> Bound:
    destination, source = instruction.operands[:2]
    function, get = SAVE_EXEC[instruction.mnemonic], scalar64(source)

    def execute(batch: WaveBatch) -> None:
        old, value = batch.read_s64(EXEC), get(batch)
        result = np.broadcast_to(function(value, old), (batch.n,))
        batch.write_s64(destination.index, old)
        batch.write_s64(EXEC, result)
        batch.scc[batch.sel] = result != 0

    sources = operand_mask([source])
    return Bound(
        execute,
        sources | EXEC_MASK,
        operand_mask([destination]) | EXEC_MASK | SCC_MASK,
        "SALU",
        propagate=bitwise_mask(instruction, execute),
    )


def _bind_select(instruction: Instruction) -> Bound:
    destination = instruction.operands[0]
    wide = instruction.mnemonic.endswith("b64")
    if instruction.mnemonic.startswith("s_cselect"):
        if_set, if_clear = instruction.operands[1:3]
    else:
        if_set, if_clear = instruction.operands[1], destination
    get_set, get_clear = reader(if_set, wide), reader(if_clear, wide)
    target = _Destination(destination.index, wide)

    def execute(batch: WaveBatch) -> None:
        target.write(batch, np.where(batch.scc[batch.sel], get_set(batch), get_clear(batch)))

    reads = operand_mask([if_set, if_clear]) | SCC_MASK
    return Bound(execute, reads, operand_mask([destination]), "SALU", _exec_sink(destination, reads))


def _bind_set_bit(instruction: Instruction, on: bool, wide: bool) -> Bound:
    destination, place = instruction.operands[:2]
    get_old, get_place = reader(destination, wide), scalar32(place)
    target, last = _Destination(destination.index, wide), np.uint32(63 if wide else 31)
    one: Array = np.ones(1, np.uint64 if wide else np.uint32)

    def execute(batch: WaveBatch) -> None:
        bit = one << (get_place(batch) & last).astype(one.dtype)
        target.write(batch, get_old(batch) | bit if on else get_old(batch) & ~bit)

    reads = operand_mask([destination, place])
    return Bound(execute, reads, operand_mask([destination]), "SALU", _exec_sink(destination, reads))
