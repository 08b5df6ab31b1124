"""One operand of an instruction, parsed from the text that LLVM prints."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from gfx950_emulator.errors import CodeObjectError

Kind = Literal["vgpr", "agpr", "sgpr", "integer", "float", "off", "scc", "special", "symbol"]

EXEC, EXEC_HI, VCC, VCC_HI, M0 = 126, 127, 106, 107, 124
NAMED_SGPRS = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC_HI, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC_HI, 1),
    "m0": (M0, 1),
    "flat_scratch": (102, 2),
    "flat_scratch_lo": (102, 1),
    "flat_scratch_hi": (103, 1),
    "xnack_mask": (104, 2),
}
SPECIALS = {
    "src_shared_base",
    "src_shared_limit",
    "src_private_base",
    "src_private_limit",
    "src_execz",
    "src_vccz",
    "execz",
    "vccz",
}
_FILES: dict[str, Kind] = {"v": "vgpr", "a": "agpr", "s": "sgpr"}
_SINGLE = re.compile(r"(v|a|s|ttmp)(\d+)$")
_RANGE = re.compile(r"(v|a|s|ttmp)\[(\d+)(?::(\d+))?\]$")
_INTEGER = re.compile(r"-?(0x[0-9a-fA-F]+|\d+)$")
_FLOAT = re.compile(r"-?\d*\.\d+(e[-+]?\d+)?$")
_FUNCTION = re.compile(r"(neg|abs|sext)\((.*)\)$")


@dataclass(frozen=True)
class Operand:
    """A register range, an inline constant or literal, or a name."""

    kind: Kind
    index: int = 0
    count: int = 1
    """Number of consecutive 32-bit registers."""
    integer: int = 0
    number: float = 0.0
    name: str = ""
    negate: bool = False
    absolute: bool = False
    sext: bool = False

    def part(self, offset: int) -> Operand:
        """The 32-bit register `offset` places into this range, without modifiers."""
        return Operand(self.kind, self.index + offset)

    @property
    def is_register(self) -> bool:
        return self.kind in ("vgpr", "agpr", "sgpr")

    @property
    def is_constant(self) -> bool:
        return self.kind in ("integer", "float")


OFF = Operand("off")


def parse_operand(text: str) -> Operand:
    """Parse one operand, for example `v[2:3]`, `-|v4|`, `0x7f800000`, `vcc` or a label."""
    text = text.strip()
    if not text:
        raise CodeObjectError("empty operand")
    negate = absolute = sext = False
    if text[0] == "-" and not _INTEGER.match(text) and not _FLOAT.match(text):
        negate, text = True, text[1:]
    if match := _FUNCTION.match(text):
        negate |= match[1] == "neg"
        absolute |= match[1] == "abs"
        sext |= match[1] == "sext"
        text = match[2]
    if text.startswith("|") and text.endswith("|"):
        absolute, text = True, text[1:-1]
    return replace(_parse_plain(text), negate=negate, absolute=absolute, sext=sext)


def _parse_plain(text: str) -> Operand:
    if match := _SINGLE.match(text):
        return _register(match[1], int(match[2]), 1)
    if match := _RANGE.match(text):
        first = int(match[2])
        return _register(match[1], first, int(match[3] or first) - first + 1)
    if text in NAMED_SGPRS:
        index, count = NAMED_SGPRS[text]
        return Operand("sgpr", index, count)
    if text in ("off", "null"):
        return OFF
    if text in ("scc", "src_scc"):
        return Operand("scc")
    if text in SPECIALS:
        return Operand("special", name=text.removeprefix("src_"))
    if _INTEGER.match(text):
        return Operand("integer", integer=int(text, 0))
    if _FLOAT.match(text):
        return Operand("float", number=float(text))
    return Operand("symbol", name=text)


def _register(file: str, index: int, count: int) -> Operand:
    if file == "ttmp":
        return Operand("sgpr", 108 + index, count)
    return Operand(_FILES[file], index, count)
