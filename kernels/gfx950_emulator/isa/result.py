"""Result modifiers and writing of lane-wise vector results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa.values import Type
from gfx950_emulator.machine.arrays import Array, Bools
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

Writer = Callable[[WaveBatch, Array, Bools | None], None]
Function = Callable[..., Array]
_SATURATING: dict[str, tuple[Function, int, int]] = {
    "v_add_u32": (lambda a, b: a + b, 0, 2**32 - 1),
    "v_sub_u32": (lambda a, b: a - b, 0, 2**32 - 1),
    "v_subrev_u32": (lambda a, b: b - a, 0, 2**32 - 1),
    "v_add_i32": (lambda a, b: a + b, -(2**31), 2**31 - 1),
    "v_sub_i32": (lambda a, b: a - b, -(2**31), 2**31 - 1),
    "v_add_u16": (lambda a, b: a + b, 0, 2**16 - 1),
    "v_sub_u16": (lambda a, b: a - b, 0, 2**16 - 1),
    "v_add_i16": (lambda a, b: a + b, -(2**15), 2**15 - 1),
    "v_sub_i16": (lambda a, b: a - b, -(2**15), 2**15 - 1),
}

_KEEP_HIGH_HALF = frozenset(
    f"v_{name}" for name in ("fma_f16", "mad_f16", "mad_u16", "mad_i16", "div_fixup_f16")
) | frozenset(f"v_{name}3_{kind}" for name in ("min", "max", "med") for kind in ("f16", "i16", "u16"))


def clamp_unit(values: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes 0 (DX10_CLAMP, which the loader requires)."""
    return np.where(np.isnan(values), 0, np.clip(values, 0, 1)).astype(values.dtype)


def with_result_modifiers(instruction: Instruction, result: Type, function: Function) -> Function:
    """Wrap `function` with output scaling (omod) and clamp."""
    factor = 1.0
    if "mul" in instruction.modifiers:
        factor *= instruction.number("mul")
    if "div" in instruction.modifiers:
        factor /= instruction.number("div")
    clamp = instruction.flag("clamp")
    if factor == 1.0 and not clamp:
        return function
    if not result.is_float:
        return _saturating(instruction)
    scale = result.dtype.type(factor)

    def modified(*sources: Array) -> Array:
        value = function(*sources)
        if factor != 1.0:
            value = value * scale
        return clamp_unit(value) if clamp else value

    return modified


def _saturating(instruction: Instruction) -> Function:
    if instruction.mnemonic not in _SATURATING:
        raise UnsupportedInstruction("integer clamp is implemented for additions and subtractions only")
    function, low, high = _SATURATING[instruction.mnemonic]
    signed = instruction.mnemonic[-3] == "i"
    bits = int(instruction.mnemonic[-2:])

    def saturated(a: Array, b: Array) -> Array:
        if signed:
            a, b = a.view(f"i{bits // 8}"), b.view(f"i{bits // 8}")
        wide = np.clip(function(a.astype(np.int64), b.astype(np.int64)), low, high)
        return np.asarray(wide.astype(f"i{bits // 8}" if signed else f"u{bits // 8}").view(f"u{bits // 8}"))

    return saturated


def result_writer(instruction: Instruction, result: Type, high_half: int) -> Writer:
    """How a typed result reaches the destination VGPR of operand 0."""
    row = vector_index(instruction.operands[0])
    if result.bytes == 4:

        def write32(batch: WaveBatch, value: Array, lanes: Bools | None) -> None:
            batch.write_v(row, np.ascontiguousarray(value).view(np.uint32), lanes)

        return write32
    if result.bytes == 8:

        def write64(batch: WaveBatch, value: Array, lanes: Bools | None) -> None:
            batch.write_v64(row, np.ascontiguousarray(value).view(np.uint64), lanes)

        return write64

    def write16(batch: WaveBatch, value: Array, lanes: Bools | None) -> None:
        bits = np.ascontiguousarray(value).view(np.uint16).astype(np.uint32)
        if high_half:
            bits = batch.v[row][batch.sel] & np.uint32(0xFFFF) | bits << np.uint32(16)
        elif keeps_high_half(instruction):
            bits = batch.v[row][batch.sel] & np.uint32(0xFFFF0000) | bits
        batch.write_v(row, bits, lanes)

    return write16


def keeps_high_half(instruction: Instruction) -> bool:
    """Whether a 16-bit result leaves the upper half of the destination alone; on gfx9 most zero it."""
    return instruction.mnemonic in _KEEP_HIGH_HALF or "op_sel" in instruction.modifiers
