"""Instructions that move values between lanes: readlane, writelane, swaps of half rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.isa.values import Type, scalar32, vector_source
from gfx950_emulator.machine.arrays import I64, LANE, LANES, Array
from gfx950_emulator.machine.registers import SGPR_BASE, register_numbers, vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch


def bind(instruction: Instruction) -> Bound | None:
    """Bind a cross-lane move; None when the mnemonic is not one."""
    binder = _BINDERS.get(instruction.mnemonic)
    return binder(instruction) if binder else None


def _chosen_lane(instruction: Instruction) -> Callable[[WaveBatch], I64]:
    """Lane read by v_readlane or v_readfirstlane, per wave."""
    if instruction.mnemonic == "v_readlane_b32":
        select = scalar32(instruction.operands[2])
        return lambda batch: np.broadcast_to(select(batch).astype(np.int64) & 63, (batch.n,))

    def first_active(batch: WaveBatch) -> I64:
        lanes = batch.exec_lanes()
        if lanes is None:
            return np.zeros(batch.n, np.int64)
        return np.asarray(np.argmax(lanes, axis=1))

    return first_active


def _bind_read(instruction: Instruction) -> Bound:
    target, source = instruction.operands[:2]
    get, lane = vector_source(source, Type.U32), _chosen_lane(instruction)

    def execute(batch: WaveBatch) -> None:
        values = np.broadcast_to(get(batch), (batch.n, LANES))
        batch.write_s(target.index, values[np.arange(batch.n), lane(batch)])

    def propagate(batch: WaveBatch) -> None:
        if batch.defined is None:
            return execute(batch)
        numbers = list(register_numbers(source))
        flags = batch.defined.lanes(numbers, batch.sel, batch.n)[np.arange(batch.n), lane(batch)]
        execute(batch)
        batch.defined.set(SGPR_BASE + target.index, batch.sel, flags[:, None])
        return None

    selector = operand_mask(list(instruction.operands[2:]))
    return Bound(
        execute,
        operand_mask([source]) | EXEC_MASK | selector,
        operand_mask([target]),
        sinks=((selector, "which lane is read"),) if selector else (),
        propagate=propagate,
    )


def _bind_write(instruction: Instruction) -> Bound:
    target, source, selector = instruction.operands[:3]
    value, select = scalar32(source), scalar32(selector)
    row = vector_index(target)

    def place(batch: WaveBatch, array: Array, values: Array) -> None:
        lanes = np.broadcast_to(select(batch).astype(np.int64) & 63, (batch.n,))
        array[batch.group, lanes] = values

    def execute(batch: WaveBatch) -> None:
        place(batch, batch.v[row], np.broadcast_to(value(batch), (batch.n,)))

    def propagate(batch: WaveBatch) -> None:
        execute(batch)
        if batch.defined is not None:
            flags = batch.defined.lanes(list(register_numbers(source)), batch.sel, batch.n)[:, 0]
            place(batch, batch.defined.rows(row), flags)

    return Bound(
        execute,
        operand_mask([source, selector]),
        operand_mask([target]),
        sinks=((operand_mask([selector]), "which lane is written"),),
        propagate=propagate,
    )


def exchange_rows(size: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Swap the odd groups of `size` lanes of the first array with the even groups of the second."""
    odd = LANE // size % 2 == 1
    partner = np.where(odd, LANE - size, LANE + size)

    def exchange(first: Array, second: Array) -> tuple[Array, Array]:
        return (
            np.where(odd, second[:, partner], first),
            np.where(odd, second, first[:, partner]),
        )

    return exchange


def _swap_whole(first: Array, second: Array) -> tuple[Array, Array]:
    return second, first


def _bind_exchange(function: Callable[[Array, Array], tuple[Array, Array]]) -> Callable[[Instruction], Bound]:
    def bind_exchange(instruction: Instruction) -> Bound:
        first, second = instruction.operands[:2]
        rows = vector_index(first), vector_index(second)

        def execute(batch: WaveBatch) -> None:
            left, right = function(batch.read_v(rows[0]).copy(), batch.read_v(rows[1]).copy())
            batch.write_v(rows[0], left)
            batch.write_v(rows[1], right)

        return Bound(
            execute,
            operand_mask([first, second]) | EXEC_MASK,
            operand_mask([first, second]),
            propagate=_exchange_propagation(execute, function, rows),
        )

    return bind_exchange


def _exchange_propagation(
    execute: Execute, function: Callable[[Array, Array], tuple[Array, Array]], rows: tuple[int, int]
) -> Execute:
    def propagate(batch: WaveBatch) -> None:
        if batch.defined is None:
            return execute(batch)
        flags = function(batch.defined.rows(rows[0])[batch.sel].copy(), batch.defined.rows(rows[1])[batch.sel].copy())
        execute(batch)
        for row, flag in zip(rows, flags, strict=True):
            batch.defined.set(row, batch.sel, flag, batch.active())
        return None

    return propagate


_BINDERS: dict[str, Callable[[Instruction], Bound]] = {
    "v_readlane_b32": _bind_read,
    "v_readfirstlane_b32": _bind_read,
    "v_writelane_b32": _bind_write,
    "v_swap_b32": _bind_exchange(_swap_whole),
    "v_permlane16_swap_b32": _bind_exchange(exchange_rows(16)),
    "v_permlane32_swap_b32": _bind_exchange(exchange_rows(32)),
}
