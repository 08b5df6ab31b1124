"""Reading operands as typed arrays: getters are built once, when an instruction is bound."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.machine.arrays import U32, U64, Array
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

Getter = Callable[[WaveBatch], Array]


class Type(Enum):
    """How an operand's bits are read."""

    U32 = "u4"
    I32 = "i4"
    F32 = "f4"
    U16 = "u2"
    I16 = "i2"
    F16 = "f2"
    U64 = "u8"
    I64 = "i8"
    F64 = "f8"

    @property
    def dtype(self) -> np.dtype[np.generic]:
        return np.dtype(self.value)

    @property
    def is_float(self) -> bool:
        return self.value[0] == "f"

    @property
    def bytes(self) -> int:
        return int(self.value[1])


SHARED_APERTURE = 0x0001_0000_0000_0000
PRIVATE_APERTURE = 0x0002_0000_0000_0000
_SPECIAL_HIGH = {
    "shared_base": SHARED_APERTURE >> 32,
    "private_base": PRIVATE_APERTURE >> 32,
    "shared_limit": SHARED_APERTURE >> 32,
    "private_limit": PRIVATE_APERTURE >> 32,
}


def vector_source(operand: Operand, kind: Type, half: int = 0) -> Getter:
    """Getter of an array that broadcasts to [n, 64]; `half` picks the upper 16 bits of 16-bit types (op_sel)."""
    get = _unmodified(operand, kind, half)
    if kind.is_float:
        return _float_modifiers(get, operand)
    if operand.negate or operand.absolute:
        raise UnsupportedInstruction(f"negation or absolute value of the integer operand {operand}")
    return get


def _float_modifiers(get: Getter, operand: Operand) -> Getter:
    if operand.absolute and operand.negate:
        return lambda batch: np.negative(np.abs(get(batch)))
    if operand.absolute:
        return lambda batch: np.abs(get(batch))
    if operand.negate:
        return lambda batch: np.negative(get(batch))
    return get


def _unmodified(operand: Operand, kind: Type, half: int) -> Getter:
    if operand.is_constant:
        value = constant_bits(operand, kind)
        array = np.array([[value]], f"u{kind.bytes}").view(kind.dtype)
        return lambda batch: array
    if operand.kind in ("vgpr", "agpr"):
        return _from_vector(vector_index(operand), kind, half)
    if kind.bytes == 8:
        wide = scalar64(operand)
        return lambda batch: wide(batch)[:, None].view(kind.dtype)
    narrow = scalar32(operand)
    if kind.bytes == 2:
        shift = np.uint32(16 * half)
        return lambda batch: (narrow(batch) >> shift).astype(np.uint16).view(kind.dtype)[:, None]
    return lambda batch: narrow(batch).view(kind.dtype)[:, None]


def _from_vector(row: int, kind: Type, half: int) -> Getter:
    if kind is Type.F32:
        return lambda batch: batch.v_f32[row][batch.sel]
    if kind is Type.U32:
        return lambda batch: batch.v[row][batch.sel]
    if kind is Type.I32:
        return lambda batch: batch.v_i32[row][batch.sel]
    if kind.bytes == 2:
        dtype = kind.dtype
        return lambda batch: batch.v_half[row][batch.sel][..., half].view(dtype)

    def pair(batch: WaveBatch) -> Array:
        low, high = batch.v[row][batch.sel], batch.v[row + 1][batch.sel]
        return np.asarray((low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)).view(kind.dtype))

    return pair


def constant_bits(operand: Operand, kind: Type) -> int:
    """Bits of an inline constant or literal, read as `kind`."""
    if operand.kind == "float":
        if kind.bytes == 8:
            return int(np.array(operand.number, np.float64).view(np.uint64))
        if kind.bytes == 2:
            return int(np.array(operand.number, np.float16).view(np.uint16))
        return int(np.array(operand.number, np.float32).view(np.uint32))
    value = operand.integer
    if kind is Type.F64 and not -16 <= value <= 64:
        value <<= 32  # a 32-bit literal supplies the high half of a double
    return value & ((1 << 8 * kind.bytes) - 1)


def scalar32(operand: Operand) -> Callable[[WaveBatch], U32]:
    """Getter of uint32 [n] (or [1] for constants) from a scalar operand."""
    if operand.is_constant:
        value = np.array([constant_bits(operand, Type.U32)], np.uint32)
        return lambda batch: value
    if operand.kind == "sgpr":
        index = operand.index
        return lambda batch: batch.s[index][batch.sel]
    if operand.kind == "scc":
        return lambda batch: batch.scc[batch.sel].astype(np.uint32)
    if operand.kind == "special" and operand.name in _SPECIAL_HIGH:
        high = np.array([0], np.uint32)
        return lambda batch: high
    raise UnsupportedInstruction(f"operand {operand.name or operand.kind!r} cannot be read as a scalar here")


def scalar64(operand: Operand) -> Callable[[WaveBatch], U64]:
    """Getter of uint64 [n] (or [1]) from a scalar operand."""
    if operand.is_constant:
        value = np.array([constant_bits(operand, Type.U64)], np.uint64)
        return lambda batch: value
    if operand.kind == "sgpr":
        index = operand.index
        return lambda batch: batch.read_s64(index)
    if operand.kind == "special" and operand.name in _SPECIAL_HIGH:
        base = np.array([_SPECIAL_HIGH[operand.name] << 32], np.uint64)
        return lambda batch: base
    raise UnsupportedInstruction(f"operand {operand.name or operand.kind!r} cannot be read as a 64-bit scalar")
