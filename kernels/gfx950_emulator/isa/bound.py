"""What binding an instruction yields: a function to execute it, and its register dependencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import EXEC, VCC, Operand
from gfx950_emulator.machine.registers import SCC, SGPR_BASE, mask_of, register_numbers
from gfx950_emulator.machine.wave_batch import WaveBatch

Execute = Callable[[WaveBatch], None]
InstructionClass = Literal["VALU", "SALU", "MFMA", "VMEM", "SMEM", "LDS", "BRANCH", "WAIT", "NOP"]
CLASSES: tuple[InstructionClass, ...] = (
    "VALU",
    "MFMA",
    "VMEM",
    "LDS",
    "SMEM",
    "SALU",
    "BRANCH",
    "WAIT",
    "NOP",
)
EXEC_MASK = mask_of((SGPR_BASE + EXEC, SGPR_BASE + EXEC + 1))
VCC_MASK = mask_of((SGPR_BASE + VCC, SGPR_BASE + VCC + 1))
SCC_MASK = 1 << SCC


@dataclass
class Bound:
    """An instruction ready to execute.

    reads, writes: dependency masks (machine/registers.py), implicit operands included.
    sinks: registers whose undefined lanes are an error, with what they decide.
    propagate: executes and updates definedness; None for the lane-wise rule.
    refills: registers that a vector memory load writes and does not read.
    """

    execute: Execute
    reads: int = 0
    writes: int = 0
    kind: InstructionClass = "VALU"
    sinks: tuple[tuple[int, str], ...] = ()
    propagate: Execute | None = None
    refills: int = 0
    touched: int = field(init=False)
    sink_mask: int = field(init=False)

    def __post_init__(self) -> None:
        self.touched = self.reads | self.writes
        self.sink_mask = 0
        for mask, _ in self.sinks:
            self.sink_mask |= mask


def operand_mask(operands: tuple[Operand, ...] | list[Operand]) -> int:
    """Dependency mask of several operands."""
    mask = 0
    for operand in operands:
        mask |= mask_of(register_numbers(operand))
    return mask


def classify(instruction: Instruction) -> InstructionClass:
    """Class of an instruction for the launch report."""
    name = instruction.mnemonic
    if name.startswith(("v_mfma", "v_smfmac")):
        return "MFMA"
    if name.startswith("v_"):
        return "VALU"
    if name.startswith(("global_", "buffer_", "flat_", "scratch_", "tbuffer_")):
        return "VMEM"
    if name.startswith("ds_"):
        return "LDS"
    if name.startswith(("s_load", "s_buffer_load", "s_store", "s_dcache", "s_memtime", "s_memrealtime")):
        return "SMEM"
    if name.startswith("s_waitcnt"):
        return "WAIT"
    if name in ("s_nop", "s_sleep", "s_setprio"):
        return "NOP"
    if name.startswith(("s_branch", "s_cbranch", "s_endpgm", "s_barrier", "s_setpc", "s_swappc")):
        return "BRANCH"
    return "SALU"
