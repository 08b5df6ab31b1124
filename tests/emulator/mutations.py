"""Mutations of compiled kernels: single faults that a compiler or a kernel author could make."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from gfx950_emulator.front_end.instruction import Instruction, parse_instruction
from gfx950_emulator.front_end.kernel import Kernel

Kind = Literal["barrier", "waitcnt", "relaxed", "offset", "op_sel"]
_COUNTERS = ("vmcnt", "lgkmcnt")


@dataclass(frozen=True)
class Mutant:
    """One changed kernel."""

    kind: Kind
    pc: int
    original: str
    mutated: str
    kernel: Kernel

    def __str__(self) -> str:
        return f"{self.kernel.name} pc {self.pc}: `{self.original}` -> `{self.mutated or '(deleted)'}`"


def mutants(kernel: Kernel) -> Iterator[Mutant]:
    """Every mutant of a kernel: each barrier and wait deleted, each count of a wait raised by one, each offset shifted,
    each bit of op_sel flipped."""
    for pc, instruction in enumerate(kernel.instructions):
        if instruction.mnemonic == "s_barrier":
            yield _changed(kernel, "barrier", pc, "s_nop 0")
        elif instruction.mnemonic == "s_waitcnt":
            yield _changed(kernel, "waitcnt", pc, "s_nop 0")
            yield from _relaxed_waits(kernel, pc, instruction)
        else:
            yield from _operand_mutants(kernel, pc, instruction)


def _relaxed_waits(kernel: Kernel, pc: int, instruction: Instruction) -> Iterator[Mutant]:
    """One outstanding operation more than the compiler allows, for each counter."""
    text = instruction.text
    for match in re.finditer(r"(?:vmcnt|lgkmcnt)\((\d+)\)", text):
        yield _changed(kernel, "relaxed", pc, f"{text[: match.start(1)]}{int(match[1]) + 1}{text[match.end(1) :]}")


def _operand_mutants(kernel: Kernel, pc: int, instruction: Instruction) -> Iterator[Mutant]:
    text = instruction.text
    if instruction.mnemonic.startswith(("ds_", "buffer_", "global_", "scratch_", "s_load")) and not _lds_lanes(
        instruction
    ):
        shifted = _shift_offset(instruction)
        if shifted != text:
            yield _changed(kernel, "offset", pc, shifted)
    for match in re.finditer(r"(op_sel(?:_hi)?):\[([01,]+)\]", text):
        bits = match[2].split(",")
        for position in range(_meaningful(instruction, len(bits))):
            flipped = [*bits]
            flipped[position] = "1" if bits[position] == "0" else "0"
            changed = f"{text[: match.start(2)]}{','.join(flipped)}{text[match.end(2) :]}"
            yield _changed(kernel, "op_sel", pc, changed)


def _lds_lanes(instruction: Instruction) -> bool:
    return "permute" in instruction.mnemonic or "swizzle" in instruction.mnemonic


def _meaningful(instruction: Instruction, count: int) -> int:
    """Positions of a list modifier that the instruction reads; the third one of a scaled MFMA means nothing."""
    return 2 if instruction.mnemonic.startswith("v_mfma_scale") else count


def _shift_offset(instruction: Instruction) -> str:
    """The instruction with its offset moved by one access."""
    text = instruction.text
    if re.search(r"\boffset0:\d+", text):
        return re.sub(r"\boffset0:(\d+)", lambda m: f"offset0:{(int(m[1]) + 1) % 256}", text)
    if "offset1:" in text or re.match(r"ds_(read|write)2", text):
        return f"{text} offset0:1"
    step = _access_bytes(instruction)
    if re.search(r"\boffset:-?\d+", text):
        return re.sub(r"\boffset:(-?\d+)", lambda m: f"offset:{int(m[1]) + step}", text)
    if instruction.mnemonic.startswith("s_load"):
        return re.sub(r"0x([0-9a-f]+)$", lambda m: f"{int(m[1], 16) + step:#x}", text)
    if text.endswith(" lds"):
        return text.removesuffix(" lds") + f" offset:{step} lds"
    return f"{text} offset:{step}"


def _access_bytes(instruction: Instruction) -> int:
    name = instruction.mnemonic
    if match := re.search(r"dwordx(\d+)", name):
        return 4 * int(match[1])
    if match := re.search(r"_[bui](\d+)", name):
        return max(1, int(match[1]) // 8)
    return 1 if "byte" in name else 2 if "short" in name else 4


def _changed(kernel: Kernel, kind: Kind, pc: int, text: str) -> Mutant:
    old = kernel.instructions[pc]
    new = replace(parse_instruction(text, old.address, old.source), target=old.target)
    code = (*kernel.instructions[:pc], new, *kernel.instructions[pc + 1 :])
    shown = "" if kind in ("barrier", "waitcnt") else text
    return Mutant(kind, pc, old.text, shown, kernel.with_instructions(code))
