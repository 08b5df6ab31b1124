"""How undefined values travel through instructions that have no rule of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import EXEC, Operand
from gfx950_emulator.isa.bound import Bound, Execute
from gfx950_emulator.isa.values import scalar64
from gfx950_emulator.machine.arrays import Array, Bools, all_along
from gfx950_emulator.machine.registers import SCC, SGPR_BASE, numbers_in, register_numbers
from gfx950_emulator.machine.wave_batch import WaveBatch

_EXEC_NUMBERS = (SGPR_BASE + EXEC, SGPR_BASE + EXEC + 1)


def lanewise(bound: Bound, batch: WaveBatch) -> None:
    """A result lane is defined when all sources are: executes `bound` and updates the flags."""
    defined = batch.defined
    if defined is None:
        return bound.execute(batch)
    sources = [n for n in numbers_in(bound.reads & defined.suspects) if n not in _EXEC_NUMBERS]
    if bound.kind == "SALU":
        uniform = np.ones((batch.n, 1), np.bool_)
        for number in sources:
            rows = defined.rows(number)[batch.sel]
            uniform = uniform & (rows[:, :1] if number == SCC else all_along(rows, 1)[:, None])
        bound.execute(batch)
        for number in numbers_in(bound.writes):
            defined.set(number, batch.sel, uniform)
        return None
    lanes = defined.lanes(sources, batch.sel, batch.n)
    active = batch.exec_lanes()
    bound.execute(batch)
    for number in numbers_in(bound.writes):
        if number < SGPR_BASE:
            defined.set(number, batch.sel, lanes, active)
    _set_masks(bound, batch, lanes if active is None else lanes | ~active)
    return None


def _set_masks(bound: Bound, batch: WaveBatch, bits: Bools) -> None:
    """Lane masks written beside a vector result: bit l belongs to lane l."""
    numbers = [number for number in numbers_in(bound.writes) if number >= SGPR_BASE]
    if batch.defined is not None:
        for position, number in enumerate(numbers):
            half = 32 * (position % 2)
            batch.defined.set(number, batch.sel, bits[:, half : half + 32])


Combine = Callable[[Array, Array, Bools, Bools], Bools]
"""(bits a, bits b, a defined, b defined) to result defined."""


def _and(a: Array, b: Array, fa: Bools, fb: Bools) -> Bools:
    return np.asarray((fa & fb) | (fa & ~a) | (fb & ~b))


def _or(a: Array, b: Array, fa: Bools, fb: Bools) -> Bools:
    return np.asarray((fa & fb) | (fa & a) | (fb & b))


def _both(a: Array, b: Array, fa: Bools, fb: Bools) -> Bools:
    return np.asarray(fa & fb)


_RULES: dict[str, Combine] = {
    "and": _and,
    "nand": _and,
    "or": _or,
    "nor": _or,
    "andn2": lambda a, b, fa, fb: _and(a, ~b, fa, fb),
    "orn2": lambda a, b, fa, fb: _or(a, ~b, fa, fb),
    "xor": _both,
    "xnor": _both,
}


def bitwise_mask(instruction: Instruction, execute: Execute) -> Execute | None:
    """Bit-precise rule for 64-bit scalar logic: a defined 0 decides an AND, a defined 1 an OR."""
    name, _, width = instruction.mnemonic.removeprefix("s_").partition("_")
    saves = width == "saveexec_b64"
    if name not in _RULES or not (width == "b64" or saves):
        return None
    destination, first = instruction.operands[:2]
    second = Operand("sgpr", EXEC, 2) if saves else instruction.operands[2]
    combine, sources = _RULES[name], (scalar64(first), scalar64(second))

    def propagate(batch: WaveBatch) -> None:
        if batch.defined is None:
            return execute(batch)
        bits = [_bits(np.broadcast_to(get(batch), (batch.n,))) for get in sources]
        flags = combine(bits[0], bits[1], _flags(batch, first), _flags(batch, second))
        execute(batch)
        target = Operand("sgpr", EXEC, 2) if saves else destination
        written = _bits(batch.read_s64(target.index))
        for position, number in enumerate(register_numbers(target)):
            batch.defined.set(number, batch.sel, flags[:, 32 * position : 32 * position + 32])
        if saves:
            for number in register_numbers(destination):
                batch.defined.set(number, batch.sel, True)
        known = all_along(flags, 1) | (flags & written).any(1)
        batch.defined.set(SCC, batch.sel, known[:, None])
        return None

    return propagate


def _bits(values: Array) -> Bools:
    data = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), 8)
    return np.unpackbits(data, axis=1, bitorder="little").astype(np.bool_)


def _flags(batch: WaveBatch, operand: Operand) -> Bools:
    """Definedness of the 64 bits of a scalar operand, [n, 64]."""
    numbers = register_numbers(operand)
    if batch.defined is None or len(numbers) != 2:
        return np.ones((batch.n, 64), np.bool_)
    return np.concatenate([batch.defined.rows(number)[batch.sel] for number in numbers], 1)
