"""ds_read_b64_tr_b16, _b8 and _b4: LDS reads that transpose among 16 lanes."""

from __future__ import annotations

import re

import numpy as np

from gfx950_emulator.errors import ExecutionError, UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa import access
from gfx950_emulator.isa.bound import Bound
from gfx950_emulator.isa.lds_access import lds_bound, lds_read
from gfx950_emulator.isa.values import Type, vector_source
from gfx950_emulator.machine.arrays import LANES, U32, Array
from gfx950_emulator.machine.registers import register_numbers, vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

_NAME = re.compile(r"ds_read_b(64|96)_tr_b(\d+)$")


def transpose(values: U32, bits: int) -> U32:
    """[n, 64, 2] as read (64 bits a lane) to [n, 64, 2] transposed.

    The 16 lanes of a row hold, one lane after the other, a matrix of rows of 16 elements; lane i receives column i.
    """
    waves = values.shape[0]
    data = np.ascontiguousarray(values).view(np.uint8)
    elements: Array
    if bits == 16:
        elements = data.view(np.uint16)
    elif bits == 8:
        elements = data
    else:
        elements = np.stack([data & np.uint8(15), data >> np.uint8(4)], -1)
    columns = np.ascontiguousarray(elements.reshape(waves, 4, -1, 16).transpose(0, 1, 3, 2))
    if bits == 4:
        columns = columns[..., ::2] | columns[..., 1::2] << np.uint8(4)
    return np.ascontiguousarray(columns).view(np.uint32).reshape(waves, LANES, 2)


def bind(instruction: Instruction) -> Bound | None:
    """Bind a transposing LDS read; None for other mnemonics."""
    match = _NAME.match(instruction.mnemonic)
    if match is None:
        return None
    if match[2] not in ("4", "8", "16"):
        raise UnsupportedInstruction("transposing read of six-bit elements")
    bits, offset = int(match[2]), instruction.number("offset")
    destination, address = instruction.operands[:2]
    row, base = vector_index(destination), vector_source(address, Type.U32)
    width = access.width_of("b64")

    def execute(batch: WaveBatch) -> None:
        if batch.exec_lanes() is not None:
            raise ExecutionError("transposing LDS read with lanes switched off", int(batch.group[0]))
        start = access.flatten(batch, base(batch), None).astype(np.int64) + offset
        values, undefined = lds_read(batch, None, start, 8)
        moved = transpose(values.reshape(batch.n, LANES, 2), bits).reshape(-1, 2)
        if undefined is not None:
            # Every lane of a row takes part of every other lane's data.
            undefined = np.repeat(undefined.reshape(-1, 16).any(1), 16)
        access.write_loaded(batch, row, width, moved, None, undefined)
        if batch.scoreboard is not None:
            batch.scoreboard.issue("lgkm", batch.sel, register_numbers(destination))

    return lds_bound(execute, address, [], destination)
