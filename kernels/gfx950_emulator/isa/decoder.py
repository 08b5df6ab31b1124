"""Binding of whole kernels: asks each instruction family in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gfx950_emulator.errors import Site, UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.kernel import Kernel
from gfx950_emulator.isa import (
    atomics,
    bitop3,
    buffer_access,
    carry,
    compare,
    control,
    conversions,
    direct_to_lds,
    division,
    global_access,
    lane_mask,
    lanes,
    lds_access,
    lds_lanes,
    lds_transpose,
    mfma,
    packed,
    scalar_alu,
    scalar_compare,
    scalar_memory,
    scaled_conversions,
    scratch_access,
    vector,
)
from gfx950_emulator.isa.bound import Bound, classify

FAMILIES: tuple[Callable[[Instruction], Bound | None], ...] = (
    vector.bind,
    compare.bind,
    lane_mask.bind,
    carry.bind,
    packed.bind,
    mfma.bind,
    conversions.bind,
    scaled_conversions.bind,
    bitop3.bind,
    division.bind,
    lanes.bind,
    scalar_alu.bind,
    scalar_compare.bind,
    scalar_memory.bind,
    direct_to_lds.bind,
    global_access.bind,
    buffer_access.bind,
    scratch_access.bind,
    lds_access.bind,
    lds_transpose.bind,
    lds_lanes.bind,
    atomics.bind,
    control.bind,
)
SCHEDULED = ("s_endpgm", "s_barrier", "s_branch")
"""Executed by the scheduler, together with the conditional branches."""


@dataclass(frozen=True)
class Program:
    """A kernel ready to execute; `bound[i]` is None for instructions that the scheduler executes itself."""

    kernel: Kernel
    bound: tuple[Bound | None, ...]


def bind_instruction(instruction: Instruction) -> Bound | None:
    """Bind one instruction; None when the scheduler executes it. Raises UnsupportedInstruction."""
    if instruction.mnemonic in SCHEDULED or instruction.mnemonic in control.CONDITIONS:
        return None
    for family in FAMILIES:
        bound = family(instruction)
        if bound is not None:
            bound.kind = classify(instruction)
            if instruction.mnemonic.startswith(("global_load", "buffer_load")):
                bound.refills = bound.writes & ~bound.reads
            return bound
    raise UnsupportedInstruction("no instruction family implements this mnemonic")


def bind_kernel(kernel: Kernel) -> Program:
    """Bind every instruction; the first that is not implemented raises with its text and address."""
    bound = []
    for pc, instruction in enumerate(kernel.instructions):
        try:
            bound.append(bind_instruction(instruction))
        except UnsupportedInstruction as error:
            error.locate(Site(kernel.name, pc, instruction.address, instruction.text, instruction.source))
            raise
    return Program(kernel, tuple(bound))


def unsupported(kernel: Kernel) -> list[tuple[Instruction, str]]:
    """Every instruction of a kernel that cannot be bound, with the reason."""
    missing = []
    for instruction in kernel.instructions:
        try:
            bind_instruction(instruction)
        except UnsupportedInstruction as error:
            missing.append((instruction, error.message))
    return missing
