"""Which register lanes hold a defined value.

Registers start undefined. Undefined values travel through arithmetic like any other; they raise where they decide
something: an address, a branch, EXEC, a store (families mark such operands as sinks). A write of part of a
register (16-bit halves, bytes) defines all of it: compilers leave the rest undefined on purpose.
"""

from __future__ import annotations

import numpy as np

from gfx950_emulator.errors import UninitialisedRead
from gfx950_emulator.machine.arrays import I64, LANES, Array, Bools, Selection, all_along
from gfx950_emulator.machine.registers import SGPR_BASE, numbers_in, register_name

_SCALARS = 129


class Definedness:
    """`vector[register, wave, lane]` and `scalar[register, wave, bit]`; SCC is scalar register 128, bit 0.

    `suspects` has the bit of every register that may be undefined somewhere, so that the common case, everything
    defined, costs one integer test an instruction.
    """

    def __init__(self, vector_registers: int, waves: int) -> None:
        self.vector = np.zeros((vector_registers, waves, LANES), np.bool_)
        self.scalar = np.zeros((_SCALARS, waves, 32), np.bool_)
        self.suspects = (1 << vector_registers) - 1 | ((1 << _SCALARS) - 1) << SGPR_BASE

    def rows(self, number: int) -> Array:
        """Flags [waves, lanes or bits] of one dependency number."""
        if number >= SGPR_BASE:
            return np.asarray(self.scalar[number - SGPR_BASE])
        return np.asarray(self.vector[number])

    def define(self, number: int) -> None:
        """The register is defined everywhere."""
        self.rows(number)[:] = True
        self.suspects &= ~(1 << number)

    def set(self, number: int, selection: Selection, flags: Bools | bool, lanes: Bools | None = None) -> None:
        """Replace the flags of the group, in `lanes` [n, 64] only where given."""
        rows = self.rows(number)
        rows[selection] = flags if lanes is None else np.where(lanes, flags, rows[selection])
        if rows.all():
            self.suspects &= ~(1 << number)
        else:
            self.suspects |= 1 << number

    def lanes(self, numbers: list[int], selection: Selection, count: int) -> Array:
        """Lanes [n, 64] in which all registers are defined; one undefined bit of an SGPR spoils all lanes."""
        result: Array = np.ones((count, LANES), np.bool_)
        for number in numbers:
            rows = self.rows(number)[selection]
            result &= rows if number < SGPR_BASE else all_along(rows, 1)[:, None]
        return result

    def require(self, mask: int, selection: Selection, waves: I64, active: Bools | None, use: str) -> None:
        """Raise UninitialisedRead when a register of `mask` is undefined in an active lane of the group."""
        for number in numbers_in(mask & self.suspects):
            rows = self.rows(number)[selection]
            wrong = ~rows
            if number < SGPR_BASE and active is not None:
                wrong = wrong & active
            if wrong.any():
                wave, lane = (int(index[0]) for index in np.nonzero(wrong))
                where = f" in lane {lane}" if number < SGPR_BASE else ""
                raise UninitialisedRead(
                    f"{register_name(number)} is undefined{where} and decides {use}", int(waves[wave])
                )
