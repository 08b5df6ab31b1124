"""Atomic instructions on global memory, buffers and LDS."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gfx950_emulator.errors import UnsupportedInstruction
from gfx950_emulator.front_end.instruction import Instruction
from gfx950_emulator.front_end.operand import Operand
from gfx950_emulator.isa import access
from gfx950_emulator.isa.atomic_ops import FUNCTIONS, to_values, to_words, turns
from gfx950_emulator.isa.bound import EXEC_MASK, Bound, Execute, operand_mask
from gfx950_emulator.isa.buffer_access import buffer_address
from gfx950_emulator.isa.global_access import (
    address_source,
    issue,
    memory_bound,
    read_global,
    write_global,
)
from gfx950_emulator.isa.lds_access import issue_lds, lds_read, lds_write
from gfx950_emulator.isa.values import Type, vector_source
from gfx950_emulator.machine.arrays import U32, Array
from gfx950_emulator.machine.registers import register_numbers, vector_index
from gfx950_emulator.machine.wave_batch import WaveBatch

_MEMORY = re.compile(r"(global|flat|buffer)_atomic_(\w+?)(_x2)?$")
_LDS = re.compile(r"ds_(?!read|write|b?permute|swizzle)(\w+?)(?:_(rtn))?_([ubif]\d+|f16|bf16)$")
_FLOAT_NAMES = {"add_f32": "fadd", "add_f64": "fadd", "min_f64": "fmin", "max_f64": "fmax"}
_LDS_NAMES = {
    "add_u": "add",
    "sub_u": "sub",
    "rsub_u": "rsub",
    "inc_u": "inc",
    "dec_u": "dec",
    "min_u": "umin",
    "max_u": "umax",
    "min_i": "smin",
    "max_i": "smax",
    "and_b": "and",
    "or_b": "or",
    "xor_b": "xor",
    "wrxchg_b": "swap",
    "add_f": "fadd",
    "min_f": "fmin",
    "max_f": "fmax",
}
Update = Callable[[Array, Array], Array]
"""(old words [k, r], data words [k, d]) to new words."""


def bind(instruction: Instruction) -> Bound | None:
    """Bind an atomic; None for other mnemonics."""
    if match := _MEMORY.match(instruction.mnemonic):
        return _bind_memory(instruction, match[1], match[2], bool(match[3]))
    if instruction.mnemonic.startswith("ds_") and (match := _LDS.match(instruction.mnemonic)):
        return _bind_lds(instruction, match[1], bool(match[2]), match[3])
    return None


def _update(name: str, words: int, compare_first: bool) -> Update:
    """Function on register words; compare-and-swap takes two values of data."""
    if name in ("cmpswap", "cmpst"):

        def compare_and_swap(old: Array, data: Array) -> Array:
            first, second = data[:, :words], data[:, words:]
            expected, replacement = (first, second) if compare_first else (second, first)
            same = (old == expected).all(1)[:, None]
            return np.where(same, replacement, old)

        return compare_and_swap
    function = FUNCTIONS.get(name)
    if function is None:
        raise UnsupportedInstruction(f"atomic operation {name!r}")
    return lambda old, data: to_words(function(to_values(old), to_values(data)))


def _bind_memory(instruction: Instruction, space: str, name: str, wide: bool) -> Bound:
    wide = wide or name.endswith("f64")
    words = 2 if wide else 1
    update = _update(_FLOAT_NAMES.get(name, name), words, compare_first=False)
    returns = instruction.flag("sc0") or instruction.flag("glc")
    operands = list(instruction.operands)
    if space == "buffer":
        data, address_operands = operands[0], operands[1:]
        destination = data if returns else None
    else:
        destination = operands.pop(0) if returns else None
        data = operands[1]
        address_operands = [operands[0], *operands[2:]]
    resolve = _resolver(instruction, space, address_operands, words)
    data_width = access.Width(4 * data.count)
    row, flat = vector_index(data), space == "flat"
    target = vector_index(destination) if destination else None

    def execute(batch: WaveBatch) -> None:
        lanes, addresses = resolve(batch)
        values = access.collect(batch, row, data_width, lanes)
        before = np.zeros((len(addresses), words), np.uint32)
        for positions in turns(addresses.astype(np.int64)):
            part = _part_lanes(batch, lanes, positions)
            old, _ = read_global(batch, part, addresses[positions], 4 * words)
            write_global(batch, part, addresses[positions], 4 * words, update(old, values[positions]))
            before[positions] = old
        if target is not None:
            access.write_loaded(batch, target, access.Width(4 * words), before, lanes, None)
        issue(batch, flat, range(0) if target is None else range(target, target + words))

    return memory_bound(execute, address_operands, [data], destination)


def _part_lanes(batch: WaveBatch, lanes: access.Lanes, positions: Array) -> Array:
    """Lane mask of some of the accessing lanes, in lane order (only fault messages use it)."""
    base = batch.active() if lanes is None else lanes
    flags = np.zeros(int(base.sum()), np.bool_)
    flags[positions] = True
    part = base.copy()
    part[base] = flags
    return part


def _resolver(
    instruction: Instruction, space: str, operands: list[Operand], words: int
) -> Callable[[WaveBatch], tuple[access.Lanes, Array]]:
    if space == "buffer":
        buffer = buffer_address(instruction, operands)

        def resolve_buffer(batch: WaveBatch) -> tuple[access.Lanes, Array]:
            addresses, valid = buffer.resolve(batch, 4 * words)
            active = batch.exec_lanes()
            lanes = valid if active is None else valid & active
            return lanes, addresses[lanes]

        return resolve_buffer
    get_address = address_source(instruction, operands)

    def resolve(batch: WaveBatch) -> tuple[access.Lanes, Array]:
        lanes = batch.exec_lanes()
        return lanes, access.flatten(batch, get_address(batch), lanes)

    return resolve


def _bind_lds(instruction: Instruction, name: str, returns: bool, kind: str) -> Bound | None:
    words = 2 if kind.endswith("64") else 1
    if name.startswith("pk_add"):
        operation = f"pk_add_{kind}"
    elif name in ("cmpst", "mskor"):
        operation = name
    else:
        operation = _LDS_NAMES.get(f"{name}_{kind[0]}", "")
    if not operation:
        return None
    update = _update(operation, words, compare_first=True)
    destination = instruction.operands[0] if returns else None
    address, *data = instruction.operands[1 if returns else 0 :]
    base, offset = vector_source(address, Type.U32), instruction.number("offset")
    rows = [(vector_index(operand), access.Width(4 * operand.count)) for operand in data]

    def execute(batch: WaveBatch) -> None:
        lanes = batch.exec_lanes()
        addresses = access.flatten(batch, base(batch), lanes).astype(np.int64) + offset
        values = np.concatenate([access.collect(batch, row, width, lanes) for row, width in rows], 1)
        before = _lds_turns(batch, lanes, addresses, words, values, update)
        if destination is None:
            return
        row = vector_index(destination)
        access.write_loaded(batch, row, access.Width(4 * words), before, lanes, None)
        if batch.scoreboard is not None:
            batch.scoreboard.issue("lgkm", batch.sel, register_numbers(destination))

    return _lds_bound(execute, address, data, destination)


def _lds_turns(batch: WaveBatch, lanes: access.Lanes, addresses: Array, words: int, values: U32, update: Update) -> U32:
    """Apply the operation lane by lane where addresses collide; returns the values before."""
    groups = access.flatten(batch, batch.workgroup[batch.sel][:, None], lanes)
    events = issue_lds(batch)
    before = np.zeros((len(addresses), words), np.uint32)
    monitor, batch.lds_monitor = batch.lds_monitor, None  # atomics of several waves do not race
    try:
        for positions in turns(groups * (1 << 32) + addresses):
            part = _part_lanes(batch, lanes, positions)
            order = np.argsort(np.argsort(positions))
            where = np.sort(positions)
            old, _ = lds_read(batch, part, addresses[where], 4 * words)
            lds_write(batch, part, addresses[where], 4 * words, update(old, values[where]), True, "lgkm", events)
            before[positions] = old[order]
    finally:
        batch.lds_monitor = monitor
    return before


def _lds_bound(execute: Execute, address: Operand, data: list[Operand], destination: Operand | None) -> Bound:
    return Bound(
        execute,
        operand_mask([address, *data]) | EXEC_MASK,
        operand_mask([destination] if destination else []),
        "LDS",
        ((operand_mask([address]), "an LDS address"), (operand_mask(data), "what is stored")),
        propagate=execute,
    )
