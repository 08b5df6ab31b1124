"""ds_read_* and ds_write_*: loads and stores of the workgroup's LDS."""

from __future__ import annotations

import re

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.isa import access
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.isa.values import Getter, Type, vector_source
from gfx950_emulator.machine.arrays import I64, U32, Array, Bools
from gfx950_emulator.machine.global_memory import AddressError
from gfx950_emulator.machine.lds_monitor import by_dword, in_rows
from gfx950_emulator.machine.registers import register_numbers, vector_index
from gfx950_emulator.machine.scoreboard import Counter
from gfx950_emulator.machine.wave_batch import WaveBatch

_NAME = re.compile(r"ds_(read|write)(2)?(st64)?_([bui]\d+(?:_d16(?:_hi)?)?)$")


def bind(instruction: Instruction) -> Bound | None:
    """Bind a plain LDS load or store; None for other mnemonics."""
    match = _NAME.match(instruction.mnemonic)
    if match is None:
        return None
    width = access.width_of(match[4])
    if match[2]:
        unit = width.bytes * (64 if match[3] else 1)
        offsets = [instruction.number("offset0") * unit, instruction.number("offset1") * unit]
    else:
        offsets = [instruction.number("offset")]
    if match[1] == "read":
        return _bind_read(instruction, width, offsets)
    return _bind_write(instruction, width, offsets)


def lds_bound(execute: Execute, address: Operand, data: list[Operand], destination: Operand | None) -> Bound:
    """A Bound whose address must be defined; data may carry poison into LDS."""
    return Bound(
        execute,
        operand_mask([address, *data]) | EXEC_MASK,
        operand_mask([destination] if destination else []),
        "LDS",
        ((operand_mask([address]), "an LDS address"),),
        propagate=execute,
    )


def _bind_read(instruction: Instruction, width: access.Width, offsets: list[int]) -> Bound:
    destination, address = instruction.operands[:2]
    row, base = vector_index(destination), vector_source(address, Type.U32)
    targets = register_numbers(destination)

    def execute(batch: WaveBatch) -> None:
        lanes = batch.exec_lanes()
        start = access.flatten(batch, base(batch), lanes).astype(np.int64)
        loaded = [lds_read(batch, lanes, start + offset, width.bytes) for offset in offsets]
        for part, (values, undefined) in enumerate(loaded):
            access.write_loaded(batch, row + part * width.registers, width, values, lanes, undefined)
        if batch.scoreboard is not None:
            batch.scoreboard.issue("lgkm", batch.sel, targets)

    return lds_bound(execute, address, [], destination)


def _bind_write(instruction: Instruction, width: access.Width, offsets: list[int]) -> Bound:
    address, *data = instruction.operands
    base: Getter = vector_source(address, Type.U32)
    rows = [vector_index(operand) for operand in data]

    def execute(batch: WaveBatch) -> None:
        lanes = batch.exec_lanes()
        start = access.flatten(batch, base(batch), lanes).astype(np.int64)
        events = issue_lds(batch)
        for row, offset in zip(rows, offsets, strict=True):
            values = access.collect(batch, row, width, lanes)
            defined = access.stored_flags(batch, row, width, lanes)
            lds_write(batch, lanes, start + offset, width.bytes, values, defined, "lgkm", events)

    return lds_bound(execute, address, data, None)


def issue_lds(batch: WaveBatch) -> I64 | None:
    """Count one LDS operation without a destination register; event numbers [n], None when not checked."""
    return None if batch.scoreboard is None else batch.scoreboard.issue("lgkm", batch.sel, range(0))


def lds_places(batch: WaveBatch, lanes: access.Lanes, addresses: Array, size: int) -> I64:
    """Offsets [k] into the LDS store, after bounds and alignment checks."""
    if len(addresses) == 0:
        return np.zeros(0, np.int64)
    # The addition of the offset wraps at 32 bits: compilers use bases below 0.
    addresses = addresses.astype(np.int64) & 0xFFFFFFFF
    if int(addresses.min()) < 0 or int(addresses.max()) + size > batch.lds_bytes:
        at = int(np.argmax((addresses < 0) | (addresses + size > batch.lds_bytes)))
        message = (
            f"LDS access of {size} bytes at {int(addresses[at])}, the workgroup has {batch.lds_bytes} bytes of LDS"
        )
        access.raise_fault(batch, lanes, AddressError(message, at))
    need = {12: 4}.get(size, size)
    if batch.options.checks.alignment and (addresses & (need - 1)).any():
        at = int(np.argmax((addresses & (need - 1)) != 0))
        message = f"LDS access of {size} bytes at {int(addresses[at])} is not aligned to {need} bytes"
        access.raise_fault(batch, lanes, AddressError(message, at, misaligned=True))
    groups = access.flatten(batch, batch.workgroup[batch.sel][:, None], lanes)
    return np.asarray(addresses + groups * batch.lds_stride)


def lds_read(batch: WaveBatch, lanes: access.Lanes, addresses: Array, size: int) -> tuple[U32, Bools | None]:
    """Read LDS at byte addresses [k]: values [k, registers] and which are undefined."""
    places = lds_places(batch, lanes, addresses, size)
    batch.counters.lds_bytes_read += size * len(places)
    if batch.lds_monitor is not None and batch.lds_monitor.needed:
        waves = access.lane_waves(batch, lanes)
        if in_rows(places, size):
            batch.lds_monitor.read(places, size, waves, batch.scoreboard)
        else:
            batch.lds_monitor.read(*_dwords(places, size, waves), batch.scoreboard)
    undefined = batch.lds.undefined(places, size) if batch.defined is not None else None
    return batch.lds.gather(places, size), undefined


def lds_write(
    batch: WaveBatch,
    lanes: access.Lanes,
    addresses: Array,
    size: int,
    values: U32,
    defined: Bools | bool,
    counter: Counter,
    events: I64 | None,
) -> None:
    """Write LDS at byte addresses [k]; `events` [n] are the waves' counter events of this operation."""
    places = lds_places(batch, lanes, addresses, size)
    batch.counters.lds_bytes_written += size * len(places)
    if batch.lds_monitor is not None and (batch.lds_monitor.needed or counter == "vm"):
        waves = access.lane_waves(batch, lanes)
        per_lane = None if events is None else access.flatten(batch, events[:, None], lanes)
        if in_rows(places, size):
            batch.lds_monitor.write(places, size, waves, counter, per_lane)
        else:
            split = None if per_lane is None else by_dword(places, size, per_lane)[1]
            batch.lds_monitor.write(*_dwords(places, size, waves), counter, split)
    batch.lds.scatter(places, size, values)
    batch.lds.mark(places, size, defined)


def _dwords(places: I64, size: int, waves: I64) -> tuple[I64, int, I64]:
    split, owners = by_dword(places, size, waves)
    return split, 4, owners
