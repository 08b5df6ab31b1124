"""ds_bpermute, ds_permute and ds_swizzle: lane exchanges that use the LDS hardware but no LDS memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, operand_mask
from gfx950_emulator.isa.values import Type, vector_source
from gfx950_emulator.machine.arrays import I64, LANE, LANES, Array
from gfx950_emulator.machine.registers import register_numbers, vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

Move = Callable[[WaveBatch, Array], Array]
"""Values [n, 64] to moved values; what no lane supplies becomes 0."""


def bind(instruction: Instruction) -> Bound | None:
    """Bind a lane exchange; None for other mnemonics."""
    name = instruction.mnemonic
    if name == "ds_swizzle_b32":
        return _bound(instruction, 1, _swizzle(instruction))
    if name == "ds_bpermute_b32":
        return _bound(instruction, 2, _pull(_lane_index(instruction)))
    if name == "ds_permute_b32":
        return _bound(instruction, 2, _push(_lane_index(instruction)))
    return None


def _lane_index(instruction: Instruction) -> Callable[[WaveBatch], I64]:
    get, offset = vector_source(instruction.operands[1], Type.U32), np.uint32(instruction.number("offset"))
    return lambda batch: np.broadcast_to(
        ((get(batch) + offset) >> np.uint32(2) & np.uint32(63)).astype(np.int64), (batch.n, LANES)
    )


def _silenced(batch: WaveBatch, values: Array) -> Array:
    active = batch.exec_lanes()
    return values if active is None else np.where(active, values, values.dtype.type(0))


def _pull(index: Callable[[WaveBatch], I64]) -> Move:
    return lambda batch, values: np.take_along_axis(_silenced(batch, values), index(batch), 1)


def _push(index: Callable[[WaveBatch], I64]) -> Move:
    def move(batch: WaveBatch, values: Array) -> Array:
        active = batch.active()
        result = np.zeros_like(values)
        wave = np.broadcast_to(np.arange(batch.n)[:, None], active.shape)
        result[wave[active], index(batch)[active]] = values[active]
        return result

    return move


def _swizzle(instruction: Instruction) -> Move:
    source = _swizzle_source(instruction)
    return lambda batch, values: _silenced(batch, values)[:, source]


def _swizzle_source(instruction: Instruction) -> I64:
    pattern = instruction.modifiers.get("offset", 0)
    if not isinstance(pattern, int):
        raise UnsupportedInstruction("symbolic ds_swizzle pattern; only numbers are read")
    if pattern & 0x8000:
        quad = np.array([pattern >> 2 * position & 3 for position in range(4)])
        return np.asarray(LANE // 4 * 4 + quad[LANE % 4])
    and_mask, or_mask, xor_mask = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
    return np.asarray(LANE // 32 * 32 + ((LANE % 32 & and_mask | or_mask) ^ xor_mask))


def _bound(instruction: Instruction, source: int, move: Move) -> Bound:
    destination, operand = instruction.operands[0], instruction.operands[source]
    row, get = vector_index(destination), vector_source(operand, Type.U32)

    def execute(batch: WaveBatch) -> None:
        batch.write_v(row, move(batch, np.broadcast_to(get(batch), (batch.n, LANES))))
        if batch.scoreboard is not None:
            batch.scoreboard.issue("lgkm", batch.sel, register_numbers(destination))

    def propagate(batch: WaveBatch) -> None:
        if batch.defined is None:
            return execute(batch)
        undefined = ~batch.defined.lanes(list(register_numbers(operand)), batch.sel, batch.n)
        flags = ~move(batch, undefined)
        execute(batch)
        batch.defined.set(row, batch.sel, flags, batch.active())
        return None

    addresses = operand_mask(list(instruction.operands[1:source]))
    return Bound(
        execute,
        operand_mask(list(instruction.operands[1:])) | EXEC_MASK,
        operand_mask([destination]),
        "LDS",
        ((addresses, "which lane is read"),) if addresses else (),
        propagate=propagate,
    )
