"""buffer_load_* and buffer_store_*: accesses through a buffer resource, with its range check."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import OFF, Operand
from gfx950_emulator.isa import access
from gfx950_emulator.isa.bound import Bound
from gfx950_emulator.isa.global_access import issue, memory_bound, read_global, write_global
from gfx950_emulator.isa.values import Getter, Type, scalar32, vector_source
from gfx950_emulator.machine.arrays import LANES, U64, Array, Bools
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

_NAME = re.compile(r"buffer_(load|store)_(\w+)$")
_CACHE_CONTROL = ("buffer_wbl2", "buffer_inv")


@dataclass(frozen=True)
class BufferAddress:
    """Address operands of a buffer instruction: optional VGPR offset and index, resource, SGPR offset."""

    operands: list[Operand]
    resource: int
    offset: int
    scalar_offset: Getter
    vector_offset: Getter | None
    index: Getter | None

    def resolve(self, batch: WaveBatch, size: int) -> tuple[U64, Bools]:
        """(addresses, in range), both [n, 64].

        Raw buffers compare the whole offset with num_records in bytes, structured ones the index with num_records.
        """
        words = [batch.s[self.resource + i][batch.sel][:, None] for i in range(4)]
        if (words[1] >> np.uint32(31)).any():
            raise UnsupportedInstruction("swizzled buffer resource")
        base = words[0].astype(np.uint64) | (words[1] & np.uint32(0xFFFF)).astype(np.uint64) << np.uint64(32)
        stride = (words[1] >> np.uint32(16) & np.uint32(0x3FFF)).astype(np.int64)
        records = words[2].astype(np.int64)
        offset: Array = np.full((batch.n, LANES), self.offset, np.int64)
        if self.vector_offset is not None:
            offset = offset + self.vector_offset(batch).astype(np.int64)
        scalar = self.scalar_offset(batch).astype(np.int64)[:, None]
        if self.index is None:
            valid = offset + scalar + size <= records
        else:
            index = self.index(batch).astype(np.int64)
            valid = (index < records) & (offset + size <= np.maximum(stride, size))
            offset = offset + index * stride
        addresses = base + (offset + scalar).astype(np.uint64)
        return np.broadcast_to(addresses, (batch.n, LANES)), np.broadcast_to(valid, (batch.n, LANES))


def buffer_address(instruction: Instruction, operands: list[Operand]) -> BufferAddress:
    """Read the address operands; `operands` starts at the VGPR address (or at the resource, when it is absent)."""
    vector = operands[0] if operands[0].kind in ("vgpr", "off") else OFF
    rest = operands[1:] if operands[0].kind in ("vgpr", "off") else operands
    resource, scalar = rest[0], rest[1]
    indexed, with_offset = instruction.flag("idxen"), instruction.flag("offen")
    index = vector_source(vector.part(0), Type.U32) if indexed else None
    offset = vector_source(vector.part(1 if indexed else 0), Type.U32) if with_offset else None
    return BufferAddress(
        [vector, resource, scalar],
        resource.index,
        instruction.number("offset"),
        scalar32(scalar),
        offset,
        index,
    )


def bind(instruction: Instruction) -> Bound | None:
    """Bind a buffer load or store, or a cache control instruction (which does nothing here)."""
    if instruction.mnemonic in _CACHE_CONTROL:
        return Bound(lambda batch: issue(batch, False, range(0)), kind="VMEM")
    match = _NAME.match(instruction.mnemonic)
    if match is None or instruction.flag("lds"):
        return None
    if match[2].startswith("format"):
        raise UnsupportedInstruction("typed buffer access")
    width = access.width_of(match[2])
    data, *rest = instruction.operands
    address = buffer_address(instruction, rest)
    if match[1] == "load":
        return _bind_load(data, address, width)
    return _bind_store(data, address, width)


def _bind_load(destination: Operand, address: BufferAddress, width: access.Width) -> Bound:
    row = vector_index(destination)

    def execute(batch: WaveBatch) -> None:
        values, lanes, undefined = load_in_range(batch, address, width.bytes)
        access.write_loaded(batch, row, width, values, lanes, undefined)
        issue(batch, False, range(row, row + width.registers))

    return memory_bound(execute, address.operands, [], destination)


def load_in_range(batch: WaveBatch, address: BufferAddress, size: int) -> tuple[Array, access.Lanes, Bools | None]:
    """Loaded values [k, registers] for all active lanes; lanes out of range get 0 without an access."""
    lanes = batch.exec_lanes()
    addresses, valid = address.resolve(batch, size)
    if valid.all():
        values, undefined = read_global(batch, lanes, access.flatten(batch, addresses, lanes), size)
        return values, lanes, undefined
    reading = valid if lanes is None else valid & lanes
    data, unknown = read_global(batch, reading, addresses[reading], size)
    flat_reading = access.flatten(batch, reading, lanes)
    values = np.zeros((len(flat_reading), data.shape[1]), np.uint32)
    values[flat_reading] = data
    undefined = None
    if unknown is not None:
        undefined = np.zeros(len(flat_reading), np.bool_)
        undefined[flat_reading] = unknown
    return values, lanes, undefined


def _bind_store(data: Operand, address: BufferAddress, width: access.Width) -> Bound:
    row = vector_index(data)

    def execute(batch: WaveBatch) -> None:
        lanes = batch.exec_lanes()
        addresses, valid = address.resolve(batch, width.bytes)
        if not valid.all():
            lanes = valid if lanes is None else valid & lanes
        values = access.collect(batch, row, width, lanes)
        write_global(batch, lanes, access.flatten(batch, addresses, lanes), width.bytes, values)
        issue(batch, False, range(0))

    return memory_bound(execute, address.operands, [data], None)
