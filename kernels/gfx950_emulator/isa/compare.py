"""Vector comparisons: v_cmp_*, v_cmpx_* and v_cmp_class_*."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import EXEC
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.isa.sdwa import sdwa_source
from gfx950_emulator.isa.values import Getter, Type, vector_source
from gfx950_emulator.machine.arrays import LANES, Array, Bools
from gfx950_emulator.machine.registers import SGPR_BASE, register_numbers
from gfx950_emulator.machine.wave_batch import WaveBatch

_NAME = re.compile(r"v_cmp(x?)_(\w+?)_([fiu]\d+)$")
_TYPES = {
    "f32": Type.F32,
    "i32": Type.I32,
    "u32": Type.U32,
    "f16": Type.F16,
    "i16": Type.I16,
    "u16": Type.U16,
    "f64": Type.F64,
    "i64": Type.I64,
    "u64": Type.U64,
}


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


RELATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "lg": lambda a, b: (a < b) | (a > b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~_unordered(a, b),
    "u": _unordered,
    "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    "t": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_),
    "tru": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_),
}


def float_class(values: Array) -> Array:
    """Class number of IEEE class tests: 0 signalling NaN, 1 quiet NaN, 2 -inf, 3 -normal ... 9 +inf."""
    bits, mantissa_bits = {2: (16, 10), 4: (32, 23), 8: (64, 52)}[values.dtype.itemsize]
    raw = np.ascontiguousarray(values).view(f"u{bits // 8}").astype(np.uint64)
    mantissa = raw & np.uint64((1 << mantissa_bits) - 1)
    exponent = raw >> np.uint64(mantissa_bits) & np.uint64((1 << (bits - 1 - mantissa_bits)) - 1)
    negative = raw >> np.uint64(bits - 1) != 0
    quiet = mantissa >> np.uint64(mantissa_bits - 1) != 0
    top = (1 << (bits - 1 - mantissa_bits)) - 1
    special = np.where(mantissa != 0, np.where(quiet, 1, 0), np.where(negative, 2, 9))
    small = np.where(mantissa == 0, np.where(negative, 5, 6), np.where(negative, 4, 7))
    normal = np.where(negative, 3, 8)
    return np.where(exponent == top, special, np.where(exponent == 0, small, normal)).astype(np.uint32)


def _class_test(values: Array, mask: Array) -> Array:
    return np.asarray((mask.astype(np.uint32) >> float_class(values) & np.uint32(1)) != 0)


def bind(instruction: Instruction) -> Bound | None:
    """Bind a comparison; None when the mnemonic is not one."""
    if not instruction.mnemonic.startswith("v_cmp"):
        return None
    match = _NAME.match(instruction.mnemonic)
    if match is None:
        raise UnsupportedInstruction("comparison is not implemented")
    if instruction.encoding.endswith("dpp"):
        raise UnsupportedInstruction("DPP comparison")
    relation, kind = match[2], _TYPES[match[3]]
    kinds = (kind, Type.U32) if relation == "class" else (kind, kind)
    function = _class_test if relation == "class" else RELATIONS.get(relation)
    if function is None:
        raise UnsupportedInstruction(f"relation {relation!r} is not implemented")
    operands = list(instruction.operands)
    target = operands[0].index
    left, right = _sources(instruction, kinds)
    writes_exec = bool(match[1])

    def execute(batch: WaveBatch) -> None:
        result = np.broadcast_to(function(left(batch), right(batch)), (batch.n, LANES))
        batch.write_mask(target, result)
        if writes_exec:
            batch.s[EXEC][batch.sel] = batch.s[target][batch.sel]
            batch.s[EXEC + 1][batch.sel] = batch.s[target + 1][batch.sel]
            batch.forget_exec()

    reads = operand_mask(operands[1:])
    writes = operand_mask(operands[:1]) | (EXEC_MASK if writes_exec else 0)
    sinks = ((reads, "EXEC"),) if writes_exec else ()
    numbers = [number for operand in operands[1:] for number in register_numbers(operand)]
    return Bound(execute, reads | EXEC_MASK, writes, "VALU", sinks, mask_propagation(execute, numbers, (target,)))


def _sources(instruction: Instruction, kinds: tuple[Type, Type]) -> tuple[Getter, Getter]:
    selects = instruction.bits("op_sel", (0, 0))
    getters = []
    for position, kind in enumerate(kinds):
        operand = instruction.operands[1 + position]
        if instruction.encoding == "sdwa":
            getters.append(sdwa_source(instruction, operand, position, kind))
        else:
            getters.append(vector_source(operand, kind, selects[position]))
    return getters[0], getters[1]


def mask_propagation(execute: Execute, numbers: list[int], targets: tuple[int, ...]) -> Execute:
    """Definedness of instructions whose scalar result has one bit a lane: undefined lanes give undefined bits."""

    def propagate(batch: WaveBatch) -> None:
        if batch.defined is None:
            return execute(batch)
        flags: Bools = batch.defined.lanes(numbers, batch.sel, batch.n)
        active = batch.exec_lanes()
        if active is not None:
            flags = flags | ~active
        execute(batch)
        for target in targets:
            batch.defined.set(SGPR_BASE + target, batch.sel, flags[:, :32])
            batch.defined.set(SGPR_BASE + target + 1, batch.sel, flags[:, 32:])
        return None

    return propagate
