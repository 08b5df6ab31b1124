"""Scalar loads: s_load_dword*, s_buffer_load_dword*, and the clocks."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import MemoryFault
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.isa.bound import Bound, operand_mask
from gfx950_emulator.isa.values import scalar32, scalar64
from gfx950_emulator.machine.arrays import U64
from gfx950_emulator.machine.global_memory import AddressError
from gfx950_emulator.machine.registers import SGPR_BASE, register_numbers
from gfx950_emulator.machine.wave_batch import WaveBatch

_LOAD = re.compile(r"s_(buffer_)?load_dword(?:x(\d+))?$")
_CLOCKS = ("s_memtime", "s_memrealtime")
_CACHE = ("s_dcache_inv", "s_dcache_wb", "s_dcache_inv_vol", "s_dcache_wb_vol")


def bind(instruction: Instruction) -> Bound | None:
    """Bind a scalar memory instruction; None for other mnemonics."""
    if instruction.mnemonic in _CACHE:
        return Bound(lambda batch: None, kind="SMEM")
    if instruction.mnemonic in _CLOCKS:
        return _bind_clock(instruction)
    match = _LOAD.match(instruction.mnemonic)
    if match is None:
        return None
    words = int(match[2] or 1)
    destination, *address = instruction.operands
    resolve = (_buffer_address if match[1] else _plain_address)(instruction, address, words)
    index, targets = destination.index, register_numbers(destination)

    def execute(batch: WaveBatch) -> None:
        addresses = np.broadcast_to(resolve(batch), (batch.n,))
        try:
            values, undefined = batch.memory.load(addresses, 4 * words)
        except AddressError as error:
            raise MemoryFault(error.message, int(batch.group[error.position])) from error
        batch.counters.global_bytes_read += 4 * words * batch.n
        for offset in range(words):
            batch.write_s(index + offset, values[:, offset])
        if batch.defined is not None:
            for offset in range(words):
                known = True if undefined is None else ~undefined[:, None]
                batch.defined.set(SGPR_BASE + index + offset, batch.sel, known)
        if batch.scoreboard is not None:
            batch.scoreboard.issue("lgkm", batch.sel, targets, unordered=True)

    sources = operand_mask(address)
    return Bound(execute, sources, operand_mask([destination]), "SMEM", ((sources, "an address"),), propagate=execute)


def _offset(instruction: Instruction, operand: Operand) -> Callable[[WaveBatch], U64]:
    constant = np.uint64(instruction.number("offset") & 0xFFFFFFFFFFFFFFFF)
    if operand.is_constant:
        total = np.array([(operand.integer + int(constant)) & 0xFFFFFFFFFFFFFFFF], np.uint64)
        return lambda batch: total
    get = scalar32(operand)
    return lambda batch: get(batch).astype(np.uint64) + constant


def _plain_address(instruction: Instruction, operands: list[Operand], words: int) -> Callable[[WaveBatch], U64]:
    base, offset = scalar64(operands[0]), _offset(instruction, operands[1])
    return lambda batch: (base(batch) + offset(batch)) & ~np.uint64(3)


def _buffer_address(instruction: Instruction, operands: list[Operand], words: int) -> Callable[[WaveBatch], U64]:
    resource, offset = operands[0], _offset(instruction, operands[1])

    def resolve(batch: WaveBatch) -> U64:
        base = batch.read_s64(resource.index) & np.uint64(0xFFFFFFFFFFFF)
        where = offset(batch) & ~np.uint64(3)
        outside = where + np.uint64(4 * words) > batch.s[resource.index + 2][batch.sel].astype(np.uint64)
        if outside.any():
            wave = int(batch.group[np.argmax(outside)])
            raise MemoryFault("scalar buffer load beyond num_records", wave)
        return base + where

    return resolve


def _bind_clock(instruction: Instruction) -> Bound:
    """Clocks return the number of wave-instructions executed so far: monotonic, not time."""
    destination = instruction.operands[0]

    def execute(batch: WaveBatch) -> None:
        now = np.full(batch.n, batch.counters.wave_instructions, np.uint64)
        batch.write_s64(destination.index, now)
        if batch.scoreboard is not None:
            batch.scoreboard.issue("lgkm", batch.sel, register_numbers(destination), unordered=True)

    return Bound(execute, 0, operand_mask([destination]), "SMEM")
