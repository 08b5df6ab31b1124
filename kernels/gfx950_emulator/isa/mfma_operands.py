"""Decoding of matrix operands from registers into arrays ordered by k."""

from __future__ import annotations

import numpy as np

from gfx950_emulator.isa.float_math import from_bf16
from gfx950_emulator.isa.mfma_shape import SCALE_BLOCK, MatrixShape
from gfx950_emulator.isa.small_floats import SmallFloat
from gfx950_emulator.machine.arrays import LANES, Array

_PAIRS: dict[str, Array] = {}


def read_registers(registers: Array) -> Array:
    """[registers, n, 64] uint32 to [n, 64, 4 * registers] bytes."""
    return np.ascontiguousarray(registers.transpose(1, 2, 0)).view(np.uint8)


def decode_elements(data: Array, element: str | SmallFloat) -> Array:
    """Bytes [n, 64, b] to values [n, 64, values a lane]; float32 for fp4 (exact), float64 for the rest."""
    if isinstance(element, SmallFloat):
        if element.bits == 4:
            return _nibbles(data, element)
        if element.bits == 8:
            return element.table[data]
        bits = np.unpackbits(data, axis=-1, bitorder="little")
        codes = bits.reshape(*data.shape[:-1], -1, element.bits) @ (1 << np.arange(element.bits))
        return element.table[codes]
    if element == "bf16":
        return from_bf16(data.view(np.uint16)).astype(np.float64)
    dtype = {"f16": np.float16, "f32": np.float32, "i8": np.int8, "f64": np.float64}[element]
    return data.view(dtype).astype(np.float64)


def _nibbles(data: Array, element: SmallFloat) -> Array:
    """Both elements of each byte through one table look-up of a float32 pair."""
    pairs = _PAIRS.get(element.name)
    if pairs is None:
        codes = np.arange(256)
        both = np.stack([element.table[codes & 15], element.table[codes >> 4]], -1).astype(np.float32)
        pairs = _PAIRS[element.name] = np.ascontiguousarray(both).view(np.uint64)[:, 0]
    return pairs[data].view(np.float32)


def order_by_k(values: Array, shape: MatrixShape, element: str | SmallFloat) -> Array:
    """[n, 64, values a lane] to [n, m, k].

    Lane groups follow each other along k, except for 8-bit f8f6f4 operands: there a lane holds two runs of 16,
    half of k apart.
    """
    waves, groups, rows = values.shape[0], shape.groups, shape.m
    if shape.f8f6f4 and isinstance(element, SmallFloat) and element.bits == 8:
        runs = values.reshape(waves, groups, rows, 2, shape.values_per_lane // 2)
        return runs.transpose(0, 2, 3, 1, 4).reshape(waves, rows, shape.k)
    return values.reshape(waves, groups, rows, -1).transpose(0, 2, 1, 3).reshape(waves, rows, shape.k)


def block_by_scale(values: Array, shape: MatrixShape, element: str | SmallFloat) -> Array:
    """[n, 64, values a lane] of an f8f6f4 operand to [n, k / 32, m, 32]."""
    waves = values.shape[0]
    if isinstance(element, SmallFloat) and element.bits == 8:
        ordered = order_by_k(values, shape, element)
        return ordered.reshape(waves, shape.m, -1, SCALE_BLOCK).transpose(0, 2, 1, 3)
    return values.reshape(waves, shape.groups, shape.m, SCALE_BLOCK)


def decode_scales(register: Array, byte: int, shape: MatrixShape) -> Array:
    """E8M0 scales [n, k / 32, m] from one byte of a register [n, 64]: lane = block * m + row; 255 is NaN."""
    codes = (np.broadcast_to(register, (register.shape[0], LANES)) >> np.uint32(8 * byte)) & np.uint32(255)
    values = np.where(codes == 255, np.nan, np.ldexp(1.0, codes.astype(np.int32) - 127))
    return values.reshape(-1, shape.groups, shape.m)
