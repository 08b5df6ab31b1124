"""v_bitop3: any bitwise function of three sources, given as a truth table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, operand_mask
from gfx950_emulator.isa.result import result_writer
from gfx950_emulator.isa.values import Type, vector_source
from gfx950_emulator.machine.arrays import Array
from gfx950_emulator.machine.wave_batch import WaveBatch


def truth_table_function(table: int) -> Callable[[Array, Array, Array], Array]:
    """Bitwise function whose value for bits (a, b, c) is bit 4a + 2b + c of `table`."""

    def evaluate(a: Array, b: Array, c: Array) -> Array:
        result: Array = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), a.dtype)
        for row in range(8):
            if table >> row & 1:
                result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
        return result

    return evaluate


def bind(instruction: Instruction) -> Bound | None:
    """Bind v_bitop3_b32 and v_bitop3_b16."""
    if instruction.mnemonic not in ("v_bitop3_b32", "v_bitop3_b16"):
        return None
    kind = Type.U32 if instruction.mnemonic.endswith("b32") else Type.U16
    selects = instruction.bits("op_sel", (0,) * 4)
    sources = list(instruction.operands[1:4])
    getters = [vector_source(operand, kind, selects[i]) for i, operand in enumerate(sources)]
    function = truth_table_function(instruction.number("bitop3"))
    write = result_writer(instruction, kind, selects[3])

    def execute(batch: WaveBatch) -> None:
        write(batch, function(*[get(batch) for get in getters]), None)

    return Bound(execute, operand_mask(sources) | EXEC_MASK, operand_mask([instruction.operands[0]]))
