"""The division sequence: v_div_scale, v_div_fmas, v_div_fixup, for float32 and float64."""

from __future__ import annotations

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import VCC
from gfx950_emulator.isa.bound import EXEC_MASK, VCC_MASK, Bound, operand_mask
from gfx950_emulator.isa.float_math import fma32, fma64, fma_to_odd
from gfx950_emulator.isa.values import Type, vector_source
from gfx950_emulator.isa.vector_operation import define
from gfx950_emulator.machine.arrays import LANES, Array, Bools
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch


class _Format:
    """Exponent field and thresholds of a floating-point type."""

    def __init__(self, kind: Type, mantissa: int, exponent: int, shift: int, near_max: int, tiny: int) -> None:
        self.kind = kind
        self.mantissa = mantissa
        self.exponent_mask = (1 << exponent) - 1
        self.smallest_normal = 2.0 ** (2 - (1 << (exponent - 1)))
        self.shift = shift
        self.near_max = near_max
        self.tiny = tiny
        self.middle = (1 << (exponent - 1)) - 1

    def exponent(self, values: Array) -> Array:
        """Biased exponent field."""
        unsigned = "u4" if self.kind is Type.F32 else "u8"
        raw = np.ascontiguousarray(values).view(unsigned).astype(np.uint64)
        return (raw >> np.uint64(self.mantissa) & np.uint64(self.exponent_mask)).astype(np.int64)

    def subnormal(self, values: Array) -> Array:
        return np.asarray((np.abs(values) < self.smallest_normal) & (values != 0))


_F32 = _Format(Type.F32, 23, 8, 64, 96, 23)
_F64 = _Format(Type.F64, 52, 11, 128, 768, 53)


def scale_for_division(form: _Format, value: Array, denominator: Array, numerator: Array) -> tuple[Array, Bools]:
    """(scaled value, lanes in which v_div_fmas must scale back), after AMD's published pseudo-code.

    One deviation: where reciprocal and quotient are both subnormal the text scales the denominator up, which would
    overflow it; here it is scaled down, the direction that v_div_fmas undoes. Tests divide with it exactly.
    """
    # Judged in float64: a quotient far below the smallest float32 subnormal still counts as subnormal.
    wide_n, wide_d = numerator.astype(np.float64), denominator.astype(np.float64)
    small_quotient, small_reciprocal = form.subnormal(wide_n / wide_d), form.subnormal(1.0 / wide_d)
    is_denominator = value == denominator
    is_numerator = value == numerator
    up = np.ldexp(value, form.shift).astype(value.dtype)
    down = np.ldexp(value, -form.shift).astype(value.dtype)
    e_n, e_d = form.exponent(numerator), form.exponent(denominator)
    undefined = (numerator == 0) | (denominator == 0)
    cases: list[tuple[Array, Array, bool]] = [
        (e_n - e_d >= form.near_max, np.where(is_denominator, up, value), True),
        (form.subnormal(denominator), up, False),
        (small_reciprocal & small_quotient, np.where(is_denominator, down, value), True),
        (small_reciprocal, down, False),
        (small_quotient, np.where(is_numerator, up, value), True),
        (e_n <= form.tiny, up, False),
    ]
    result = np.where(undefined, np.nan, value).astype(value.dtype)
    scaled = np.zeros(result.shape, np.bool_)
    open_lanes = ~undefined
    for condition, outcome, flag in cases:
        hit = open_lanes & condition
        result = np.where(hit, outcome, result)
        scaled |= hit & flag
        open_lanes = open_lanes & ~condition
    return result, scaled


def fixup(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """Final step of a division: sign, infinities, zeros and NaN.

    A NaN quotient of finite float32 or float64 operands means that scaling overflowed on the way: the result is
    infinite. float16 quotients are formed without scaling.
    """
    negative = np.signbit(denominator) ^ np.signbit(numerator)
    sign = np.where(negative, -1.0, 1.0).astype(quotient.dtype)
    magnitude = np.abs(quotient)
    if quotient.dtype.itemsize > 2:
        magnitude = np.where(np.isnan(quotient), np.inf, magnitude)
    result = magnitude * sign
    result = np.where((denominator == 0) | np.isinf(numerator), np.inf * sign, result)
    result = np.where(np.isinf(denominator) | (numerator == 0), 0.0 * sign, result)
    both = ((denominator == 0) & (numerator == 0)) | (np.isinf(denominator) & np.isinf(numerator))
    result = np.where(both, np.nan, result)
    result = np.where(np.isnan(denominator), denominator, result)
    return np.where(np.isnan(numerator), numerator, result).astype(quotient.dtype)


for _kind in (Type.F16, Type.F32, Type.F64):
    define(f"v_div_fixup_{_kind.name.lower()}", _kind, (_kind,) * 3, fixup)
define("v_div_fixup_legacy_f16", Type.F16, (Type.F16,) * 3, fixup)


def bind(instruction: Instruction) -> Bound | None:
    """Bind v_div_scale and v_div_fmas (v_div_fixup is lane-wise)."""
    form = _F64 if instruction.mnemonic.endswith("f64") else _F32
    if instruction.mnemonic.startswith("v_div_scale_"):
        return _bind_scale(instruction, form)
    if instruction.mnemonic.startswith("v_div_fmas_"):
        return _bind_fmas(instruction, form)
    return None


def _write(batch: WaveBatch, form: _Format, row: int, value: Array) -> None:
    value = np.ascontiguousarray(np.broadcast_to(value, (batch.n, LANES)))
    if form.kind is Type.F32:
        batch.write_v(row, value.view(np.uint32))
    else:
        batch.write_v64(row, value.view(np.uint64))


def _bind_scale(instruction: Instruction, form: _Format) -> Bound:
    destination, flags, *sources = instruction.operands
    getters = [vector_source(operand, form.kind) for operand in sources]
    row, target = vector_index(destination), flags.index

    def execute(batch: WaveBatch) -> None:
        value, denominator, numerator = (np.broadcast_to(get(batch), (batch.n, LANES)) for get in getters)
        result, scaled = scale_for_division(form, value, denominator, numerator)
        _write(batch, form, row, result)
        batch.write_mask(target, scaled)

    return Bound(execute, operand_mask(sources) | EXEC_MASK, operand_mask([destination, flags]))


def _bind_fmas(instruction: Instruction, form: _Format) -> Bound:
    destination, *sources = instruction.operands
    getters = [vector_source(operand, form.kind) for operand in sources]
    fma = fma32 if form.kind is Type.F32 else fma64
    row = vector_index(destination)

    def execute(batch: WaveBatch) -> None:
        a, b, c = (np.broadcast_to(get(batch), (batch.n, LANES)) for get in getters)
        result = fma(a, b, c)
        direction = np.where(form.exponent(c) > form.middle, form.shift, -form.shift)
        # One rounding, after scaling: quotients that end up subnormal would be rounded twice otherwise.
        unrounded = fma_to_odd(a, b, c) if form.kind is Type.F32 else result
        scaled = np.ldexp(unrounded, direction).astype(result.dtype)
        _write(batch, form, row, np.where(batch.read_mask(VCC), scaled, result))

    return Bound(execute, operand_mask(sources) | EXEC_MASK | VCC_MASK, operand_mask([destination]))
