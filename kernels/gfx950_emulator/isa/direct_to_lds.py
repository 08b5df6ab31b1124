"""Loads that go straight to LDS: global_load_lds_* and buffer_load_* ... lds.

Lane l writes at M0 + the instruction's offset + l times the access size.
"""

from __future__ import annotations

import re

import numpy as np

from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import M0, Operand
from gfx950_emulator.isa import access
from gfx950_emulator.isa.bound import Bound, Execute, operand_mask
from gfx950_emulator.isa.buffer_access import buffer_address, load_in_range
from gfx950_emulator.isa.global_access import address_source, memory_bound, read_global
from gfx950_emulator.isa.lds_access import lds_write
from gfx950_emulator.machine.arrays import LANE, U32, Bools
from gfx950_emulator.machine.wave_batch import WaveBatch

_GLOBAL = re.compile(r"global_load_lds_(\w+)$")
_BUFFER = re.compile(r"buffer_load_(\w+)$")


def bind(instruction: Instruction) -> Bound | None:
    """Bind a direct-to-LDS load; None for other instructions."""
    if match := _GLOBAL.match(instruction.mnemonic):
        return _bind_global(instruction, access.width_of(match[1]))
    if instruction.flag("lds") and (match := _BUFFER.match(instruction.mnemonic)):
        return _bind_buffer(instruction, access.width_of(match[1]))
    return None


def _bound(execute: Execute, operands: list[Operand]) -> Bound:
    bound = memory_bound(execute, operands, [], None)
    m0 = operand_mask([Operand("sgpr", M0)])
    return Bound(
        execute,
        bound.reads | m0,
        0,
        "VMEM",
        (*bound.sinks, (m0, "where in LDS a load goes")),
        propagate=execute,
    )


def _bind_global(instruction: Instruction, width: access.Width) -> Bound:
    operands = list(instruction.operands)
    get_address, offset = address_source(instruction, operands), instruction.number("offset")

    def execute(batch: WaveBatch) -> None:
        lanes = batch.exec_lanes()
        values, undefined = read_global(batch, lanes, access.flatten(batch, get_address(batch), lanes), width.bytes)
        _deposit(batch, lanes, width, offset, values, undefined)

    return _bound(execute, operands)


def _bind_buffer(instruction: Instruction, width: access.Width) -> Bound:
    address, offset = buffer_address(instruction, list(instruction.operands)), instruction.number("offset")

    def execute(batch: WaveBatch) -> None:
        values, lanes, undefined = load_in_range(batch, address, width.bytes)
        _deposit(batch, lanes, width, offset, values, undefined)

    return _bound(execute, address.operands)


def _deposit(
    batch: WaveBatch, lanes: access.Lanes, width: access.Width, offset: int, values: U32, undefined: Bools | None
) -> None:
    base = batch.s[M0][batch.sel].astype(np.int64)[:, None] + offset
    # Lanes write whole dwords even when they load a byte or a short.
    stride = max(4, width.bytes)
    addresses = access.flatten(batch, base + LANE * stride, lanes)
    events = None if batch.scoreboard is None else batch.scoreboard.issue("vm", batch.sel, range(0))
    defined: Bools | bool = True if undefined is None else ~undefined
    lds_write(batch, lanes, addresses, stride, values, defined, "vm", events)
