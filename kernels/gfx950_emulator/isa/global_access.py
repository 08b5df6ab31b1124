"""global_load_*, global_store_*, flat_load_* and flat_store_*."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import OFF, Operand
from gfx950_emulator.isa import access
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.isa.values import PRIVATE_APERTURE, SHARED_APERTURE, Type, scalar64, vector_source
from gfx950_emulator.machine.arrays import U32, U64, Array, Bools
from gfx950_emulator.machine.global_memory import AddressError
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

_NAME = re.compile(r"(global|flat)_(load|store)_(\w+)$")
_64 = 0xFFFFFFFFFFFFFFFF


def bind(instruction: Instruction) -> Bound | None:
    """Bind a global or flat load or store; None for other mnemonics."""
    match = _NAME.match(instruction.mnemonic)
    if match is None or match[3].startswith("lds_"):
        return None
    flat, width = match[1] == "flat", access.width_of(match[3])
    if match[2] == "load":
        destination, *address = instruction.operands
        execute = _load(instruction, vector_index(destination), address, width, flat)
        return memory_bound(execute, list(address), [], destination)
    address_operand, data, *rest = instruction.operands
    address = [address_operand, *rest]
    execute = _store(instruction, vector_index(data), address, width, flat)
    return memory_bound(execute, address, [data], None)


def memory_bound(execute: Execute, address: list[Operand], data: list[Operand], destination: Operand | None) -> Bound:
    """A Bound whose address and data must be defined."""
    sinks = [(operand_mask(address), "an address")]
    if data:
        sinks.append((operand_mask(data), "what is stored"))
    return Bound(
        execute,
        operand_mask(address + data) | EXEC_MASK,
        operand_mask([destination] if destination else []),
        "VMEM",
        tuple(sinks),
        propagate=execute,
    )


def address_source(instruction: Instruction, operands: list[Operand]) -> Callable[[WaveBatch], U64]:
    """Getter of 64-bit addresses that broadcast to [n, 64]: VGPR pair, or SGPR pair plus 32-bit VGPR."""
    offset = np.uint64(instruction.number("offset") & _64)
    vector, scalar = operands[0], operands[1] if len(operands) > 1 else OFF
    if scalar.kind == "sgpr":
        base = scalar64(scalar)
        if vector.kind == "off":
            return lambda batch: base(batch)[:, None] + offset
        index = vector_source(vector, Type.U32)
        return lambda batch: base(batch)[:, None] + index(batch).astype(np.uint64) + offset
    pair = vector_source(vector, Type.U64)
    return lambda batch: pair(batch) + offset


def issue(batch: WaveBatch, flat: bool, targets: range | list[int]) -> None:
    """Tell the scoreboard of one vector memory operation."""
    if batch.scoreboard is None:
        return
    batch.scoreboard.issue("vm", batch.sel, targets, unordered=flat)
    if flat:
        batch.scoreboard.issue("lgkm", batch.sel, targets, unordered=True)


def _load(instruction: Instruction, row: int, address: list[Operand], width: access.Width, flat: bool) -> Execute:
    get_address = address_source(instruction, address)
    targets = range(row, row + width.registers)

    def execute(batch: WaveBatch) -> None:
        lanes = batch.exec_lanes()
        addresses = access.flatten(batch, get_address(batch), lanes)
        values, undefined = (read_flat if flat else read_global)(batch, lanes, addresses, width.bytes)
        access.write_loaded(batch, row, width, values, lanes, undefined)
        issue(batch, flat, targets)

    return execute


def read_global(batch: WaveBatch, lanes: access.Lanes, addresses: U64, size: int) -> tuple[U32, Bools | None]:
    """Read global memory at [k] addresses; faults name the wave."""
    batch.counters.global_bytes_read += size * len(addresses)
    try:
        return batch.memory.load(addresses, size)
    except AddressError as error:
        access.raise_fault(batch, lanes, error)
        raise


def write_global(batch: WaveBatch, lanes: access.Lanes, addresses: U64, size: int, values: U32) -> None:
    """Write global memory at [k] addresses; faults name the wave."""
    batch.counters.global_bytes_written += size * len(addresses)
    try:
        batch.memory.store(addresses, size, values)
    except AddressError as error:
        access.raise_fault(batch, lanes, error)


def read_flat(batch: WaveBatch, lanes: access.Lanes, addresses: U64, size: int) -> tuple[U32, Bools | None]:
    """Read flat addresses: the LDS aperture or global memory."""
    shared = in_aperture(addresses, SHARED_APERTURE)
    if not shared.any():
        return read_global(batch, lanes, addresses, size)
    from gfx950_emulator.isa.lds_access import lds_read

    inside, outside = _split(batch, lanes, shared)
    values = np.zeros((len(addresses), max(1, size // 4)), np.uint32)
    undefined = np.zeros(len(addresses), np.bool_)
    for part, chosen, read in ((shared, inside, lds_read), (~shared, outside, read_global)):
        if part.any():
            where = addresses[part] & np.uint64(0xFFFFFFFF) if read is lds_read else addresses[part]
            data, unknown = read(batch, chosen, where, size)
            values[part] = data
            undefined[part] = False if unknown is None else unknown
    return values, undefined if undefined.any() else None


def in_aperture(addresses: U64, aperture: int) -> Bools:
    """Which flat addresses lie in the LDS or private aperture."""
    return np.asarray(addresses >> np.uint64(32) == np.uint64(aperture >> 32))


def _split(batch: WaveBatch, lanes: access.Lanes, part: Bools) -> tuple[Bools, Bools]:
    """Lane masks of the accesses inside and outside of `part` [k]."""
    base = batch.active() if lanes is None else lanes
    inside, outside = base.copy(), base.copy()
    inside[base], outside[base] = part, ~part
    return inside, outside


def _store(instruction: Instruction, row: int, address: list[Operand], width: access.Width, flat: bool) -> Execute:
    get_address = address_source(instruction, address)

    def execute(batch: WaveBatch) -> None:
        lanes = batch.exec_lanes()
        addresses: Array = access.flatten(batch, get_address(batch), lanes)
        values = access.collect(batch, row, width, lanes)
        if flat and (in_aperture(addresses, SHARED_APERTURE).any() or in_aperture(addresses, PRIVATE_APERTURE).any()):
            raise UnsupportedInstruction("flat store to LDS or private memory")
        write_global(batch, lanes, addresses, width.bytes, values)
        issue(batch, flat, range(0))

    return execute
