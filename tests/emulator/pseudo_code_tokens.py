"""Tokens and type names of AMD's pseudo-code."""

from __future__ import annotations

import re
from functools import lru_cache

from emulator.pseudo_code_values import NotComparable

_TOKEN = re.compile(
    r"""\s*(?://[^\n]*)?(?:
    (?P<sized>\d+'[UIFB]\b) | (?P<literal>\d+'(?:0x[0-9a-fA-F]+|-?\d+(?:\.\d+)?)[UIFL]*)
    | (?P<number>0x[0-9a-fA-F]+[UL]*|\d+\.\d+F?|\d+[UL]*)
    | (?P<name>[A-Za-z_]\w*) | (?P<operator>\*\*|<<|>>|<=|>=|==|!=|<>|&&|\|\||\+=|-=|\+:|[-+*/%&|^~!<>=?:;,.(){}\[\]])
    )""",
    re.VERBOSE,
)


@lru_cache(maxsize=2048)
def tokenize(text: str) -> tuple[str, ...]:
    """Tokens of a piece of pseudo-code, comments removed."""
    text = re.sub(r"//[^\n]*", "", text).strip()
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or match.end() == position:
            raise NotComparable(f"token at {text[position : position + 20]!r}")
        tokens.append(next(group for group in match.groups() if group is not None))
        position = match.end()
    return tuple(tokens)


def type_of(text: str) -> tuple[str, int]:
    """('f', 32) of 'f32'; bfloat16 has kind 'w'."""
    match = re.fullmatch(r"(bf|[uifb])(\d+)", text)
    if match is None:
        raise NotComparable(f"type {text}")
    return "w" if match[1] == "bf" else match[1], int(match[2])
