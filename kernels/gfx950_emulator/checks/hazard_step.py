"""Instructions as the wait-state rules see them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.isa.bound import Bound, operand_mask
from gfx950_emulator.isa.mfma_shape import shape_of
from gfx950_emulator.isa.small_floats import SmallFloat


@dataclass(frozen=True)
class Step:
    """An instruction with what the rules ask about it."""

    instruction: Instruction
    reads: int
    writes: int
    matrix: bool
    passes: int
    xdl: bool
    """Runs on the matrix core's main path; float32 and float64 shapes do not."""
    source_c: int

    @cached_property
    def vector_alu(self) -> bool:
        return self.instruction.mnemonic.startswith("v_") and not self.matrix

    @cached_property
    def vector_memory(self) -> bool:
        return self.instruction.mnemonic.startswith(("global_", "buffer_", "flat_", "scratch_"))

    @cached_property
    def reads_vectors(self) -> bool:
        return self.vector_alu or self.vector_memory or self.instruction.mnemonic.startswith("ds_")

    @cached_property
    def produced(self) -> int:
        """Registers whose later use a rule may concern: results, and C until it is read."""
        return self.writes | self.source_c | self.wide_store_data

    @cached_property
    def wide_store_data(self) -> int:
        """Registers of more than 64 bits that a store takes its data from, while it still reads them."""
        operands, name = self.instruction.operands, self.instruction.mnemonic
        if not self.vector_memory or "_store_" not in name:
            return 0
        if name.startswith("buffer_"):
            data = operands[0]
            if operands[-1].kind == "sgpr":
                return 0  # an SGPR offset costs the store a cycle, in which it reads its data
        else:
            data = operands[1]
        return operand_mask([data]) if data.count > 2 else 0

    @cached_property
    def touched(self) -> int:
        return self.reads | self.writes | self.source_c

    @property
    def dpp(self) -> bool:
        return self.instruction.encoding.endswith("dpp")

    def starts(self, *prefixes: str) -> bool:
        """Whether the mnemonic starts with one of the prefixes."""
        return self.instruction.mnemonic.startswith(prefixes)


def step_of(instruction: Instruction, bound: Bound | None) -> Step:
    """Describe an instruction for the rules."""
    if bound is None:
        return Step(instruction, 0, 0, False, 0, False, 0)
    if bound.kind != "MFMA":
        return Step(instruction, bound.reads, bound.writes, False, 0, False, 0)
    shape = shape_of(instruction)
    plain = shape.elements[0] in ("f32", "f64")
    return Step(
        instruction,
        operand_mask([*instruction.operands[1:3], *instruction.operands[4:]]),
        bound.writes,
        True,
        matrix_passes(instruction),
        not plain,
        operand_mask([instruction.operands[3]]),
    )


def matrix_passes(instruction: Instruction) -> int:
    """Passes (of 4 cycles) that a matrix instruction occupies.

    f8f6f4 instructions with an 8-bit operand take twice as many as those with 4- and 6-bit operands only.
    """
    shape = shape_of(instruction)
    if shape.result == "f64":
        return 16
    large = shape.m == 32
    if shape.elements[0] == "f32":
        return 16 if large else 8
    eight_bit = any(isinstance(element, SmallFloat) and element.bits == 8 for element in shape.elements)
    passes = 8 if large else 4
    return 2 * passes if shape.f8f6f4 and eight_bit else passes
