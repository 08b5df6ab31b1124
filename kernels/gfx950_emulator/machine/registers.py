"""Register numbering: one index space for dependency masks, another for the vector register file."""

from __future__ import annotations

from gfx950_emulator.front_end.operand import EXEC, M0, VCC, Operand

AGPR_BASE = 256
SGPR_BASE = 512
"""Dependency numbers: 0..255 VGPR, 256..511 AGPR, 512..639 SGPR, 640 SCC."""
SCC = 640
REGISTER_NUMBERS = 641


def vector_index(operand: Operand) -> int:
    """Row of a VGPR or AGPR in the unified vector register file."""
    return operand.index + (AGPR_BASE if operand.kind == "agpr" else 0)


def register_numbers(operand: Operand) -> range:
    """Dependency numbers of an operand's registers; empty for constants."""
    if operand.kind in ("vgpr", "agpr"):
        first = vector_index(operand)
    elif operand.kind == "sgpr":
        first = SGPR_BASE + operand.index
    elif operand.kind == "scc":
        return range(SCC, SCC + 1)
    else:
        return range(0)
    return range(first, first + operand.count)


def register_name(number: int) -> str:
    """Name of a dependency number, as the assembler writes it."""
    if number < AGPR_BASE:
        return f"v{number}"
    if number < SGPR_BASE:
        return f"a{number - AGPR_BASE}"
    if number == SCC:
        return "scc"
    named = {VCC: "vcc_lo", VCC + 1: "vcc_hi", EXEC: "exec_lo", EXEC + 1: "exec_hi", M0: "m0"}
    return named.get(number - SGPR_BASE, f"s{number - SGPR_BASE}")


def mask_of(numbers: range | list[int] | tuple[int, ...]) -> int:
    """Integer with one bit per dependency number."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask


def numbers_in(mask: int) -> list[int]:
    """Dependency numbers of a mask, ascending."""
    numbers = []
    while mask:
        low = mask & -mask
        numbers.append(low.bit_length() - 1)
        mask ^= low
    return numbers
