"""Scalar comparisons and bit tests (SOPC, s_cmpk_*): they only set SCC."""

from __future__ import annotations

import re

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.isa.bound import SCC_MASK, Bound, operand_mask
from gfx950_emulator.isa.compare import RELATIONS
from gfx950_emulator.isa.values import scalar32, scalar64
from gfx950_emulator.machine.wave_batch import WaveBatch

_COMPARE = re.compile(r"s_cmp(k?)_(eq|lg|gt|ge|lt|le)_([ui])(32|64)$")
_BIT_TEST = re.compile(r"s_bitcmp([01])_b(32|64)$")


def bind(instruction: Instruction) -> Bound | None:
    """Bind a scalar comparison; None for other mnemonics."""
    reads = operand_mask(list(instruction.operands))
    if match := _COMPARE.match(instruction.mnemonic):
        function = RELATIONS[match[2]]
        dtype = f"{match[3]}{int(match[4]) // 8}"
        read = scalar64 if match[4] == "64" else scalar32
        operands = list(instruction.operands[:2])
        if match[1] and match[3] == "i":
            # The 16-bit immediate is sign-extended; LLVM prints it unsigned.
            immediate = operands[1].integer & 0xFFFF
            operands[1] = Operand("integer", integer=immediate - ((immediate & 0x8000) << 1))
        left, right = (read(operand) for operand in operands)

        def compare(batch: WaveBatch) -> None:
            batch.scc[batch.sel] = function(left(batch).view(dtype), right(batch).view(dtype))

        return Bound(compare, reads, SCC_MASK, "SALU")
    if match := _BIT_TEST.match(instruction.mnemonic):
        wanted, bits = int(match[1]), int(match[2])
        value = (scalar64 if bits == 64 else scalar32)(instruction.operands[0])
        position = scalar32(instruction.operands[1])

        def test(batch: WaveBatch) -> None:
            shift = (position(batch) & np.uint32(bits - 1)).astype(np.uint64)
            batch.scc[batch.sel] = (value(batch).astype(np.uint64) >> shift & np.uint64(1)) == wanted

        return Bound(test, reads, SCC_MASK, "SALU")
    return None
