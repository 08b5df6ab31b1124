"""One instruction, parsed from the line that LLVM prints for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gfx950_emulator.front_end.operand import Operand, parse_operand

ModifierValue = int | str | tuple[int, ...]

_ENCODINGS = ("_e64_dpp", "_e32", "_e64", "_dpp", "_sdwa")
_COMMA = re.compile(r",(?![^\[(]*[\])])")
_TOKEN = re.compile(r"[a-z_0-9]+:\[[^\]]*\]|[a-z_0-9]+:[A-Za-z0-9_\-]+|-?\|[^|]*\||[^\s]+")
_MODIFIER = re.compile(r"([a-z_0-9]+):(.*)$")
_INTEGER = re.compile(r"-?(0x[0-9a-fA-F]+|\d+)$")
FLAGS = frozenset(
    "glc slc nt sc0 sc1 offen idxen lds gds clamp row_mirror row_half_mirror tfe lwe".split()  # noqa: SIM905
)
RAW_OPERANDS = frozenset({"s_waitcnt", "s_sendmsg", "s_setreg_imm32_b32", "s_getreg_b32", "s_setreg_b32"})


@dataclass(frozen=True)
class Instruction:
    """A decoded instruction; `mnemonic` carries no encoding suffix."""

    text: str
    mnemonic: str
    encoding: str
    """One of '', 'e32', 'e64', 'dpp', 'e64_dpp', 'sdwa'."""
    operands: tuple[Operand, ...] = ()
    modifiers: dict[str, ModifierValue] = field(default_factory=dict)
    raw: str = ""
    """Unparsed operand text of s_waitcnt, s_setreg and their like."""
    address: int | None = None
    source: str | None = None
    target: int | None = None
    """Index of the branch target in the kernel's instructions."""

    def flag(self, name: str) -> bool:
        """Whether a modifier without a value is present."""
        return name in self.modifiers

    def number(self, name: str, default: int = 0) -> int:
        """Integer value of a modifier."""
        value = self.modifiers.get(name, default)
        return value if isinstance(value, int) else default

    def bits(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A list modifier such as `op_sel:[0,1]`, filled up from `default`."""
        value = self.modifiers.get(name)
        if not isinstance(value, tuple):
            return default
        return value + default[len(value) :]

    @property
    def is_branch(self) -> bool:
        return self.mnemonic.startswith(("s_branch", "s_cbranch"))


def split_encoding(mnemonic: str) -> tuple[str, str]:
    """('v_add_f32', 'e32') of 'v_add_f32_e32'."""
    for suffix in _ENCODINGS:
        if mnemonic.endswith(suffix):
            return mnemonic.removesuffix(suffix), suffix[1:]
    return mnemonic, ""


def parse_instruction(text: str, address: int | None = None, source: str | None = None) -> Instruction:
    """Parse one line of assembly, comments already removed."""
    mnemonic, _, rest = text.partition(" ")
    base, encoding = split_encoding(mnemonic)
    rest = rest.strip()
    if base in RAW_OPERANDS:
        return Instruction(text, base, encoding, raw=rest, address=address, source=source)
    modifiers: dict[str, ModifierValue] = {}
    parts = [part.strip() for part in _COMMA.split(rest)] if rest else []
    if parts:
        parts[-1] = _peel_modifiers(parts[-1], modifiers)
    operands = tuple(parse_operand(part) for part in parts if part)
    return Instruction(text, base, encoding, operands, modifiers, rest, address, source)


def _peel_modifiers(last: str, modifiers: dict[str, ModifierValue]) -> str:
    """Take the modifiers behind the last operand away; returns the operand's text."""
    operand = []
    for token in _TOKEN.findall(last):
        match = _MODIFIER.match(token)
        if match:
            modifiers[match[1]] = _modifier_value(match[2])
        elif token in FLAGS:
            modifiers[token] = 1
        else:
            operand.append(token)
    return " ".join(operand)


def _modifier_value(text: str) -> ModifierValue:
    if text.startswith("["):
        return tuple(int(item, 0) for item in text[1:-1].split(","))
    return int(text, 0) if _INTEGER.match(text) else text
