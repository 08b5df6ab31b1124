"""scratch_load_* and scratch_store_*: private memory of each lane (spills)."""

from __future__ import annotations

import re

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import OFF, Operand
from gfx950_emulator.isa import access
from gfx950_emulator.isa.bound import Bound
from gfx950_emulator.isa.global_access import issue, memory_bound
from gfx950_emulator.isa.values import Type, scalar32, vector_source
from gfx950_emulator.machine.arrays import I64, LANE, LANES, Array
from gfx950_emulator.machine.global_memory import AddressError
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

_NAME = re.compile(r"scratch_(load|store)_(\w+)$")


def bind(instruction: Instruction) -> Bound | None:
    """Bind a scratch access; None for other mnemonics."""
    match = _NAME.match(instruction.mnemonic)
    if match is None or match[2].startswith("lds_"):
        return None
    width, load = access.width_of(match[2]), match[1] == "load"
    first, second, *rest = instruction.operands
    data, vector = (first, second) if load else (second, first)
    scalar = rest[0] if rest else OFF
    row = vector_index(data)
    locate = ScratchPlaces(instruction, vector, scalar, width.bytes)

    def execute_load(batch: WaveBatch) -> None:
        lanes = batch.exec_lanes()
        places = locate(batch, lanes)
        values = batch.scratch.gather(places, width.bytes)
        access.write_loaded(batch, row, width, values, lanes, batch.scratch.undefined(places, width.bytes))
        issue(batch, False, range(row, row + width.registers))

    def execute_store(batch: WaveBatch) -> None:
        lanes = batch.exec_lanes()
        places = locate(batch, lanes)
        batch.scratch.scatter(places, width.bytes, access.collect(batch, row, width, lanes))
        batch.scratch.mark(places, width.bytes, access.stored_flags(batch, row, width, lanes))
        issue(batch, False, range(0))

    if load:
        return memory_bound(execute_load, [vector, scalar], [], data)
    # Undefined registers may be spilled: the poison travels through scratch.
    bound = memory_bound(execute_store, [vector, scalar], [], None)
    return Bound(
        bound.execute,
        bound.reads | ((1 << width.registers) - 1) << row,
        0,
        "VMEM",
        bound.sinks,
        propagate=execute_store,
    )


class ScratchPlaces:
    """Offsets into the scratch store of the accessing lanes."""

    def __init__(self, instruction: Instruction, vector: Operand, scalar: Operand, size: int) -> None:
        self.offset = instruction.number("offset")
        self.vector = vector_source(vector, Type.U32) if vector.kind == "vgpr" else None
        self.scalar = scalar32(scalar) if scalar.kind == "sgpr" else None
        self.size = size

    def __call__(self, batch: WaveBatch, lanes: access.Lanes) -> I64:
        offsets: Array = np.full((batch.n, LANES), self.offset, np.int64)
        if self.vector is not None:
            offsets = offsets + self.vector(batch).astype(np.int64)
        if self.scalar is not None:
            offsets = offsets + self.scalar(batch).astype(np.int64)[:, None]
        flat: I64 = access.flatten(batch, offsets, lanes)
        outside = (flat < 0) | (flat + self.size > batch.scratch_bytes)
        if outside.any():
            at = int(np.argmax(outside))
            message = (
                f"scratch access of {self.size} bytes at offset {int(flat[at])}, the lane has {batch.scratch_bytes}"
            )
            access.raise_fault(batch, lanes, AddressError(message, at))
        base = (batch.group[:, None] * LANES + LANE) * batch.scratch_stride
        return np.asarray(flat + access.flatten(batch, base, lanes))
