"""Sub-dword addressing: byte and word selection on sources and destination."""

from __future__ import annotations

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.isa.result import Writer
from gfx950_emulator.isa.values import Getter, Type, vector_source
from gfx950_emulator.machine.arrays import Array, Bools
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch


def field_of(selector: str) -> tuple[int, int]:
    """(bit offset, width) of BYTE_n, WORD_n or DWORD."""
    if selector == "DWORD":
        return 0, 32
    unit, _, index = selector.partition("_")
    if unit not in ("BYTE", "WORD") or not index.isdigit():
        raise UnsupportedInstruction(f"SDWA selector {selector!r}")
    width = 8 if unit == "BYTE" else 16
    return width * int(index), width


def select_field(values: Array, offset: int, width: int, sext: bool) -> Array:
    """Bit field of uint32 values, zero- or sign-extended to 32 bits."""
    if width == 32:
        return values
    field = values >> np.uint32(offset) & np.uint32((1 << width) - 1)
    if not sext:
        return field
    shift = np.uint32(32 - width)
    return ((field << shift).view(np.int32) >> shift.astype(np.int32)).view(np.uint32)


def sdwa_source(instruction: Instruction, operand: Operand, position: int, kind: Type) -> Getter:
    """Getter of source 0 or 1 of an SDWA instruction."""
    offset, width = field_of(str(instruction.modifiers.get(f"src{position}_sel", "DWORD")))
    get = vector_source(Operand(operand.kind, operand.index, integer=operand.integer), Type.U32)
    sext, negate, absolute = operand.sext, operand.negate, operand.absolute

    def read(batch: WaveBatch) -> Array:
        bits = select_field(get(batch), offset, width, sext)
        value = bits.astype(np.uint16).view(kind.dtype) if kind.bytes == 2 else bits.view(kind.dtype)
        if absolute:
            value = np.abs(value)
        return np.negative(value) if negate else value

    if kind.bytes == 8:
        raise UnsupportedInstruction("SDWA on a 64-bit operand")
    return read


def sdwa_writer(instruction: Instruction, plain: Writer) -> Writer:
    """Writer that places the result in the selected field of the destination."""
    offset, width = field_of(str(instruction.modifiers.get("dst_sel", "DWORD")))
    if width == 32:
        return plain
    unused = str(instruction.modifiers.get("dst_unused", "UNUSED_PAD"))
    row = vector_index(instruction.operands[0])
    mask = np.uint32(((1 << width) - 1) << offset)

    def write(batch: WaveBatch, value: Array, lanes: Bools | None) -> None:
        bits = np.ascontiguousarray(value)
        bits = bits.view(np.uint16).astype(np.uint32) if bits.dtype.itemsize == 2 else bits.view(np.uint32)
        if unused == "UNUSED_SEXT":
            placed = select_field(bits, 0, width, sext=True) << np.uint32(offset)
        else:
            placed = bits << np.uint32(offset) & mask
        if unused == "UNUSED_PRESERVE":
            placed = placed | batch.v[row][batch.sel] & ~mask
        batch.write_v(row, placed, lanes)

    return write
