"""One variable of an engine: its type, default and meaning, and the toggle that sets it, if one does."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsv4_serve.errors import UsageError
from dsv4_serve.flags import Kind, Value, choice

__all__ = ["FRACTION", "INTEGER", "LIST", "NAMESPACES", "SWITCH", "TEXT", "Variable", "choice"]

NAMESPACES = ("SGLANG_", "SGL_", "AITER_", "FLYDSL_")
"""Names that begin so are the engines': a misspelt one is an error. Others are nobody's business here."""

# SGLang reads anything else as the default, with a warning that nobody sees.
TRUE = frozenset({"true", "1", "yes", "y"})
FALSE = frozenset({"false", "0", "no", "n"})


def _parse_switch(text: str) -> bool:
    lowered = text.lower()
    if lowered not in TRUE | FALSE:
        raise ValueError(text)
    return lowered in TRUE


def _parse_list(text: str) -> str:
    if not re.fullmatch(r"[^,\s]+(,[^,\s]+)*", text):
        raise ValueError(text)
    return text


SWITCH = Kind("switch", "1|0 (also true|false, yes|no, y|n)", _parse_switch)
INTEGER = Kind("integer", "an integer", int)
FRACTION = Kind("fraction", "a number", lambda text: str(float(text)))
TEXT = Kind("text", "a text", str)
LIST = Kind("list", "names, separated by commas", _parse_list)


@dataclass(frozen=True, slots=True)
class Variable:
    """`default` is the pinned engine's on ROCm. `set_by` is the toggle that the launcher writes it from."""

    name: str
    kind: Kind
    default: Value
    meaning: str
    set_by: str | None = None

    def parse(self, text: str, origin: str) -> Value:
        try:
            return self.kind.parse(text)
        except ValueError:
            raise UsageError(f"{self.name}={text!r} ({origin}): accepted is {self.kind.accepted}") from None
