"""v_cvt_scalef32_*: conversions between fp8, bf8, fp4 and f32, f16, bf16 with a power-of-two scale.

The scale operand is a float32 of which only the exponent field e counts: decoding multiplies by 2**(e - 127),
encoding divides. The six-bit formats and the stochastic forms are refused: AMD's manual does not define how the
latter use their random bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, operand_mask
from gfx950_emulator.isa.conversions import clamps, insert_bits, partial_bound
from gfx950_emulator.isa.float_math import from_bf16, to_bf16
from gfx950_emulator.isa.small_floats import BF8, FP4, FP8, SmallFloat
from gfx950_emulator.isa.values import Type, vector_source
from gfx950_emulator.machine.arrays import Array
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

_FORMATS = {"fp8": FP8, "bf8": BF8, "fp4": FP4}
_DECODE = re.compile(r"v_cvt_scalef32_(pk_)?(f32|f16|bf16)_(fp8|bf8|fp4)$")
_ENCODE = re.compile(r"v_cvt_scalef32_pk_(fp8|bf8|fp4)_(f32|f16|bf16)$")


def bind(instruction: Instruction) -> Bound | None:
    """Bind a scaled conversion; None when the mnemonic is not one."""
    name = instruction.mnemonic
    if not name.startswith("v_cvt_scalef32_"):
        return None
    if match := _DECODE.match(name):
        return _bind_decode(instruction, _FORMATS[match[3]], match[2], bool(match[1]))
    if match := _ENCODE.match(name):
        return _bind_encode(instruction, _FORMATS[match[1]], match[2])
    reason = "its stochastic rounding is not specified" if "_sr_" in name else "six-bit formats are left out"
    raise UnsupportedInstruction(f"scaled conversion refused: {reason}")


def scale_exponent(scale: Array) -> Array:
    """log2 of the scale from the exponent field of float32 bits (uint32); NaN where the field is 255."""
    field = (scale >> np.uint32(23) & np.uint32(255)).astype(np.float64)
    return np.where(field == 255, np.nan, field - 127)


def _to_type(values: Array, name: str) -> Array:
    """float64 to the 16- or 32-bit pattern of a type, in uint32."""
    if name == "f32":
        return np.ascontiguousarray(values, np.float32).view(np.uint32)
    if name == "bf16":
        return to_bf16(values.astype(np.float32))
    return values.astype(np.float16).view(np.uint16).astype(np.uint32)


def _bind_decode(instruction: Instruction, form: SmallFloat, target: str, pair: bool) -> Bound:
    destination, source, scale = instruction.operands[:3]
    get, get_scale = vector_source(source, Type.U32), vector_source(scale, Type.U32)
    selects = instruction.bits("op_sel", (0,) * 4)
    if form.bits == 8 and pair:
        shift = 16 * selects[0]
    else:
        shift = 8 * (selects[0] | selects[1] << 1)
    row, code_mask = vector_index(destination), np.uint32((1 << form.bits) - 1)

    def decoded(batch: WaveBatch, element: int) -> Array:
        codes = get(batch) >> np.uint32(shift + form.bits * element) & code_mask
        return _to_type(form.table[codes] * np.exp2(scale_exponent(get_scale(batch))), target)

    def execute(batch: WaveBatch) -> None:
        low = decoded(batch, 0)
        high = decoded(batch, 1) if pair else None
        if high is None:
            batch.write_v(row, low)
        elif target == "f32":
            batch.write_v(row, low)
            batch.write_v(row + 1, high)
        else:
            batch.write_v(row, low | high << np.uint32(16))

    return Bound(execute, operand_mask([source, scale]) | EXEC_MASK, operand_mask([destination]))


def _bind_encode(instruction: Instruction, form: SmallFloat, source_type: str) -> Bound:
    sources = list(instruction.operands[1:])
    get_scale = vector_source(sources[-1], Type.U32)
    read = _pair_reader(sources[0:-1], source_type)
    selects = instruction.bits("op_sel", (0,) * 4)
    written = "op_sel" in instruction.modifiers
    if form.bits == 8:
        width, position = 16, (selects[len(sources)] if written else 0)
    else:
        width, position = 8, (selects[2] | selects[3] << 1 if written else 0)

    def compute(batch: WaveBatch) -> Array:
        factor = np.exp2(-scale_exponent(get_scale(batch)))
        saturate = clamps(batch) if form.bits == 8 else True
        low, high = (form.encode(value.astype(np.float64) * factor, saturate) for value in read(batch))
        return low | high << np.uint32(form.bits)

    return partial_bound(instruction, len(sources), insert_bits(instruction, width, position, compute))


def _pair_reader(operands: list[Operand], source_type: str) -> Callable[[WaveBatch], tuple[Array, Array]]:
    """Reader of the two values to encode: two registers of f32, or the halves of one."""
    if source_type == "f32":
        first, second = (vector_source(operand, Type.F32) for operand in operands[:2])
        return lambda batch: (first(batch), second(batch))
    kind = Type.F16 if source_type == "f16" else Type.U16
    low, high = (vector_source(operands[0], kind, half) for half in (0, 1))
    if source_type == "f16":
        return lambda batch: (low(batch), high(batch))
    return lambda batch: (from_bf16(low(batch)), from_bf16(high(batch)))
