"""Vector additions and multiplications that read or write a carry mask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, operand_mask
from gfx950_emulator.isa.lane_mask import lane_mask_source
from gfx950_emulator.isa.values import Type, vector_source
from gfx950_emulator.machine.arrays import LANES, Array
from gfx950_emulator.machine.registers import vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

_ADDITIONS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "v_add_co_u32": lambda a, b, carry: a + b,
    "v_sub_co_u32": lambda a, b, carry: a - b,
    "v_subrev_co_u32": lambda a, b, carry: b - a,
    "v_addc_co_u32": lambda a, b, carry: a + b + carry,
    "v_subb_co_u32": lambda a, b, carry: a - b - carry,
    "v_subbrev_co_u32": lambda a, b, carry: b - a - carry,
}


def bind(instruction: Instruction) -> Bound | None:
    """Bind an addition with carry or a 64-bit multiply-add."""
    if instruction.mnemonic in _ADDITIONS:
        return _bind_addition(instruction)
    if instruction.mnemonic in ("v_mad_u64_u32", "v_mad_i64_i32"):
        return _bind_wide_multiply(instruction)
    return None


def _bind_addition(instruction: Instruction) -> Bound:
    destination, carry_out, left, right = instruction.operands[:4]
    function = _ADDITIONS[instruction.mnemonic]
    get_left, get_right = vector_source(left, Type.U32), vector_source(right, Type.U32)
    with_carry = len(instruction.operands) > 4
    get_carry = lane_mask_source(instruction.operands[4]) if with_carry else None
    row, target = vector_index(destination), carry_out.index

    def execute(batch: WaveBatch) -> None:
        carry = get_carry(batch).astype(np.int64) if get_carry else np.zeros((1, 1), np.int64)
        total = function(get_left(batch).astype(np.int64), get_right(batch).astype(np.int64), carry)
        total = np.broadcast_to(total, (batch.n, LANES))
        batch.write_v(row, (total & 0xFFFFFFFF).astype(np.uint32))
        batch.write_mask(target, (total < 0) | (total > 0xFFFFFFFF))

    return Bound(
        execute,
        operand_mask(list(instruction.operands[2:])) | EXEC_MASK,
        operand_mask([destination, carry_out]),
    )


def _bind_wide_multiply(instruction: Instruction) -> Bound:
    destination, carry_out, left, right, addend = instruction.operands[:5]
    signed = instruction.mnemonic == "v_mad_i64_i32"
    kind = Type.I32 if signed else Type.U32
    get_left, get_right, get_addend = (
        vector_source(left, kind),
        vector_source(right, kind),
        vector_source(addend, Type.U64),
    )
    row, target = vector_index(destination), carry_out.index

    def execute(batch: WaveBatch) -> None:
        wide = np.int64 if signed else np.uint64
        product = (get_left(batch).astype(wide) * get_right(batch).astype(wide)).view(np.uint64)
        added = get_addend(batch)
        total = np.broadcast_to(product + added, (batch.n, LANES))
        if signed:
            p, a, t = product.view(np.int64), added.view(np.int64), total.view(np.int64)
            carry = ((p ^ t) & (a ^ t)) < 0
        else:
            carry = total < added
        batch.write_v64(row, np.ascontiguousarray(total))
        batch.write_mask(target, np.broadcast_to(carry, (batch.n, LANES)))

    return Bound(
        execute,
        operand_mask([left, right, addend]) | EXEC_MASK,
        operand_mask([destination, carry_out]),
    )
