"""Data-parallel primitives: lane permutations of source 0, with row and bank masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.machine.arrays import I64, LANE, LANES, Array, Bools
from gfx950_emulator.machine.wave_batch import WaveBatch

_ROW, _IN_ROW = LANE // 16, LANE % 16


@dataclass(frozen=True)
class DppControl:
    """Where each lane reads, whether that lane exists, which lanes are written, and what an invalid read gives."""

    source: I64
    valid: Bools
    enabled: Bools
    zero_invalid: bool

    def permute(self, values: Array, active: Bools | None) -> tuple[Array, Bools]:
        """(values by lane, lanes to write) of values that broadcast to [n, 64]; `active` is EXEC."""
        waves = values.shape[0] if active is None else active.shape[0]
        values = np.broadcast_to(values, (waves, LANES))[:, self.source]
        valid = self.valid if active is None else self.valid & active[:, self.source]
        if self.zero_invalid:
            return np.where(valid, values, values.dtype.type(0)), self.enabled[None]
        return values, np.broadcast_to(valid & self.enabled, (waves, LANES))


def _quad(pattern: tuple[int, ...]) -> I64:
    return np.asarray(LANE // 4 * 4 + np.array(pattern)[LANE % 4])


_SHIFTS: dict[str, Callable[[int], tuple[I64, Bools]]] = {
    "row_shl": lambda n: (LANE + n, _IN_ROW + n < 16),
    "row_shr": lambda n: (LANE - n, _IN_ROW - n >= 0),
    "row_ror": lambda n: (_ROW * 16 + (_IN_ROW - n) % 16, LANE >= 0),
    "row_newbcast": lambda n: (_ROW * 16 + n, LANE >= 0),
    "row_bcast": lambda n: (LANE // (n + 1) * (n + 1) - 1, n + 1 <= LANE),
    "wave_shl": lambda n: (LANE + 1, LANE < 63),
    "wave_shr": lambda n: (LANE - 1, LANE > 0),
    "wave_rol": lambda n: ((LANE + 1) % 64, LANE >= 0),
    "wave_ror": lambda n: ((LANE - 1) % 64, LANE >= 0),
}


def dpp_control(instruction: Instruction) -> DppControl:
    """Decode the DPP modifiers of an instruction."""
    modifiers = instruction.modifiers
    source, valid = LANE, LANE >= 0
    if "quad_perm" in modifiers:
        source = _quad(instruction.bits("quad_perm", (0, 1, 2, 3)))
    elif "row_mirror" in modifiers:
        source = _ROW * 16 + 15 - _IN_ROW
    elif "row_half_mirror" in modifiers:
        source = LANE // 8 * 8 + 7 - LANE % 8
    else:
        for name, rule in _SHIFTS.items():
            if name in modifiers:
                source, valid = rule(instruction.number(name))
                break
        else:
            raise UnsupportedInstruction("DPP control is not implemented")
    row_mask, bank_mask = instruction.number("row_mask", 15), instruction.number("bank_mask", 15)
    enabled = (row_mask >> _ROW & bank_mask >> (_IN_ROW // 4) & 1).astype(bool)
    return DppControl(source.clip(0, LANES - 1), valid, enabled, "bound_ctrl" in modifiers)


def permute_in_batch(control: DppControl, batch: WaveBatch, values: Array) -> tuple[Array, Bools]:
    """Apply a control to typed values of the group."""
    values = np.broadcast_to(values, (batch.n, LANES))
    return control.permute(values, batch.exec_lanes())
