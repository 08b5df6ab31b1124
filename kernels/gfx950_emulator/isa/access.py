"""What all vector memory instructions share: widths, active lanes, register transfer, faults."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gfx950_emulator.errors import ExecutionError, MemoryFault, MisalignedAccess, UnsupportedInstruction
from gfx950_emulator.machine.arrays import I64, LANES, U32, Array, Bools
from gfx950_emulator.machine.global_memory import AddressError
from gfx950_emulator.machine.wave_batch import WaveBatch

Lanes = Bools | None
"""Lanes of an access, [n, 64]; None for all of them, which needs no gathering."""


@dataclass(frozen=True)
class Width:
    """Size of one lane's access and how it meets the register."""

    bytes: int
    signed: bool = False
    half: int | None = None
    """16-bit half of the register that a d16 access uses; None for whole registers."""

    @property
    def registers(self) -> int:
        return max(1, self.bytes // 4)


_GLOBAL = {
    "ubyte": Width(1),
    "sbyte": Width(1, signed=True),
    "ushort": Width(2),
    "sshort": Width(2, signed=True),
    "byte": Width(1),
    "short": Width(2),
    "dword": Width(4),
    "dwordx2": Width(8),
    "dwordx3": Width(12),
    "dwordx4": Width(16),
}
_LDS = {
    "u8": Width(1),
    "i8": Width(1, signed=True),
    "b8": Width(1),
    "u16": Width(2),
    "i16": Width(2, signed=True),
    "b16": Width(2),
    "b32": Width(4),
    "b64": Width(8),
    "b96": Width(12),
    "b128": Width(16),
}


def width_of(name: str) -> Width:
    """Width from the mnemonic's ending, for example `ushort`, `short_d16_hi`, `b128`, `u8_d16`."""
    base, half = name, None
    if name.endswith("_d16_hi"):
        base, half = name.removesuffix("_d16_hi"), 1
    elif name.endswith("_d16"):
        base, half = name.removesuffix("_d16"), 0
    width = _GLOBAL.get(base) or _LDS.get(base)
    if width is None:
        raise UnsupportedInstruction(f"memory access of type {name!r}")
    return Width(width.bytes, width.signed, half)


def flatten(batch: WaveBatch, values: Array, lanes: Lanes) -> Array:
    """Values of the accessing lanes, [k], from an array that broadcasts to [n, 64]."""
    full = np.broadcast_to(values, (batch.n, LANES))
    return full.reshape(-1) if lanes is None else full[lanes]


def lane_waves(batch: WaveBatch, lanes: Lanes) -> I64:
    """Wave index of each accessing lane, [k]."""
    return np.asarray(flatten(batch, batch.group[:, None], lanes))


def count_lanes(batch: WaveBatch, lanes: Lanes) -> int:
    """Number of accessing lanes."""
    return batch.n * LANES if lanes is None else int(lanes.sum())


def raise_fault(batch: WaveBatch, lanes: Lanes, error: AddressError) -> None:
    """Turn an address error into one that names the wave and lane."""
    positions = np.arange(batch.n * LANES) if lanes is None else np.flatnonzero(lanes)
    wave, lane = divmod(int(positions[error.position]), LANES)
    kind: type[ExecutionError] = MisalignedAccess if error.misaligned else MemoryFault
    raise kind(f"{error.message} (lane {lane})", int(batch.group[wave])) from error


def write_loaded(batch: WaveBatch, row: int, width: Width, values: U32, lanes: Lanes, undefined: Bools | None) -> None:
    """Put loaded values [k, registers] into registers row, row + 1, ...; keeps definedness."""
    if width.signed:
        shift = np.uint32(32 - 8 * width.bytes)
        values = ((values << shift).view(np.int32) >> shift.astype(np.int32)).view(np.uint32)
    for offset in range(width.registers):
        column = values[:, offset]
        if lanes is None:
            full = column.reshape(batch.n, LANES)
        else:
            full = np.zeros((batch.n, LANES), np.uint32)
            full[lanes] = column
        if width.half is not None:
            old = batch.v[row + offset][batch.sel]
            if width.half:
                full = old & np.uint32(0xFFFF) | full << np.uint32(16)
            else:
                full = old & np.uint32(0xFFFF0000) | full & np.uint32(0xFFFF)
        batch.write_v_unmasked(row + offset, full, lanes)
    _define_loaded(batch, row, width, lanes, undefined)


def _define_loaded(batch: WaveBatch, row: int, width: Width, lanes: Lanes, undefined: Bools | None) -> None:
    if batch.defined is None:
        return
    rows = ((1 << width.registers) - 1) << row
    if undefined is None and not batch.defined.suspects & rows:
        return
    flags: Bools | bool = True
    if undefined is not None and width.half is None:
        flags = np.ones((batch.n, LANES), np.bool_)
        flags[np.ones_like(flags) if lanes is None else lanes] = ~undefined
    for number in range(row, row + width.registers):
        batch.defined.set(number, batch.sel, flags, lanes)


def collect(batch: WaveBatch, row: int, width: Width, lanes: Lanes) -> U32:
    """Register values to store, [k, registers]."""
    columns = [flatten(batch, batch.v[row + offset][batch.sel], lanes) for offset in range(width.registers)]
    if width.half == 1:
        columns[0] = columns[0] >> np.uint32(16)
    return columns[0][:, None] if len(columns) == 1 else np.stack(columns, -1)


def stored_flags(batch: WaveBatch, row: int, width: Width, lanes: Lanes) -> Bools | bool:
    """Definedness of the values that `collect` returns, [k], for memories that carry poison."""
    if batch.defined is None or not batch.defined.suspects & ((1 << width.registers) - 1) << row:
        return True
    numbers = list(range(row, row + width.registers))
    return np.asarray(flatten(batch, batch.defined.lanes(numbers, batch.sel, batch.n), lanes))
