"""Program flow and wave state: branches, barriers, waits, MODE, program counter."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import EXEC, VCC
from gfx950_emulator.isa.bound import EXEC_MASK, SCC_MASK, VCC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.machine.arrays import Array
from gfx950_emulator.machine.scoreboard import Counter
from gfx950_emulator.machine.wave_batch import WaveBatch

Condition = Callable[[WaveBatch], Array]
_WAIT = re.compile(r"(vmcnt|lgkmcnt|expcnt)\((\d+)\)")
_HWREG = re.compile(r"hwreg\((\w+)(?:,\s*(\d+),\s*(\d+))?\)(?:,\s*(\S+))?")
_NO_EFFECT = (
    "s_nop",
    "s_sleep",
    "s_setprio",
    "s_sethalt",
    "s_icache_inv",
    "s_ttracedata",
    "s_code_end",
    "s_wakeup",
    "v_nop",
)
MAX_COUNT = {"vmcnt": 63, "lgkmcnt": 15, "expcnt": 7}


def _mask_value(index: int) -> Callable[[WaveBatch], Array]:
    return lambda batch: batch.s[index][batch.sel] | batch.s[index + 1][batch.sel]


CONDITIONS: dict[str, tuple[Condition, int]] = {
    "s_cbranch_scc0": (lambda batch: ~batch.scc[batch.sel], SCC_MASK),
    "s_cbranch_scc1": (lambda batch: batch.scc[batch.sel], SCC_MASK),
    "s_cbranch_vccz": (lambda batch: _mask_value(VCC)(batch) == 0, VCC_MASK),
    "s_cbranch_vccnz": (lambda batch: _mask_value(VCC)(batch) != 0, VCC_MASK),
    "s_cbranch_execz": (lambda batch: _mask_value(EXEC)(batch) == 0, EXEC_MASK),
    "s_cbranch_execnz": (lambda batch: _mask_value(EXEC)(batch) != 0, EXEC_MASK),
}


def bind(instruction: Instruction) -> Bound | None:
    """Bind an instruction that does not change the flow; branches, barriers and s_endpgm belong to the scheduler."""
    name = instruction.mnemonic
    if name in _NO_EFFECT:
        return Bound(lambda batch: None)
    if name == "s_waitcnt":
        return Bound(_wait(parse_wait(instruction)))
    if name.startswith("s_setreg"):
        return _bind_setreg(instruction)
    if name == "s_getpc_b64":
        return _bind_getpc(instruction)
    return None


def parse_wait(instruction: Instruction) -> dict[str, int]:
    """Counts that an s_waitcnt names; absent ones are not waited for."""
    counts = {name: int(value) for name, value in _WAIT.findall(instruction.raw)}
    if not counts:
        raise UnsupportedInstruction("s_waitcnt without named counters")
    return counts


def _wait(counts: dict[str, int]) -> Execute:
    pairs: list[tuple[Counter, int]] = []
    if "vmcnt" in counts:
        pairs.append(("vm", counts["vmcnt"]))
    if "lgkmcnt" in counts:
        pairs.append(("lgkm", counts["lgkmcnt"]))

    def execute(batch: WaveBatch) -> None:
        if batch.scoreboard is not None:
            for counter, count in pairs:
                batch.scoreboard.wait(counter, batch.sel, count)

    return execute


def _bind_setreg(instruction: Instruction) -> Bound:
    """Writes of MODE: FP16_OVFL (bit 23) is modelled, writes that keep the defaults elsewhere are accepted."""
    match = _HWREG.match(instruction.raw)
    if match is None or match[1] not in ("HW_REG_MODE", "1"):
        raise UnsupportedInstruction("only hwreg(HW_REG_MODE) can be written")
    offset, width = int(match[2] or 0), int(match[3] or 32)
    if instruction.mnemonic != "s_setreg_imm32_b32" or match[4] is None:
        raise UnsupportedInstruction("MODE written from a register")
    value = int(match[4], 0) << offset
    field = ((1 << width) - 1) << offset
    defaults, modelled = 0xF0, 1 << 23
    if (value ^ defaults) & field & 0xFF:
        raise UnsupportedInstruction("rounding or denormal mode other than the default")
    clamps = bool(value & modelled)

    def execute(batch: WaveBatch) -> None:
        if field & modelled:
            batch.fp16_overflow_clamps[batch.sel] = clamps

    return Bound(execute)


def _bind_getpc(instruction: Instruction) -> Bound:
    destination = instruction.operands[0]
    if instruction.address is None:
        raise UnsupportedInstruction("s_getpc_b64 needs the code object front end, text has no addresses")
    following = instruction.address + 4

    def execute(batch: WaveBatch) -> None:
        base = batch.code_base
        if base is None:
            raise UnsupportedInstruction("the kernel's image is not loaded", int(batch.group[0]))
        batch.write_s64(destination.index, np.full(batch.n, base + following, np.uint64))

    return Bound(execute, 0, operand_mask([destination]), "SALU")
