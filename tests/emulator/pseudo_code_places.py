"""Destinations of AMD's pseudo-code: variables, typed views and bit ranges of them."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.pseudo_code_expressions import Expressions
from emulator.pseudo_code_tokens import type_of
from emulator.pseudo_code_values import NotComparable, Value, convert, integer

Place = tuple[str, int, int, str]
"""Variable, first bit, width, type; width 0 for a variable without a type."""


class Places(Expressions):
    """Reads and writes places; `written` collects the bits assigned of each variable."""

    def __init__(self, tokens: Sequence[str], variables: dict[str, Value], written: dict[str, int]) -> None:
        super().__init__(tokens, variables)
        self.written = written

    def store(self, place: Place, value: Value) -> None:
        name, first, width, kind = place
        old = self.variables.get(name)
        if width == 0:  # an untyped variable takes the value's type
            if name not in ("D0", "D1"):
                self.variables[name] = value
                return
            width, kind = value.width, value.kind
        if (kind != value.kind and (kind == "f" or value.kind == "f") and "b" not in (kind, value.kind)) or (
            kind == "f" and value.width != width
        ):
            value = convert(value, kind, width)
        mask = ((1 << width) - 1) << first
        bits = (0 if old is None else old.bits) & ~mask | value.extended(width) << first & mask
        total = max(first + width, 0 if old is None else old.width)
        self.variables[name] = Value(bits, total, "b" if old is None else old.kind)
        self.written[name] = self.written.get(name, 0) | mask

    def chained_place(self) -> Place | None:
        """The second destination of `EXEC... = D0... = value`."""
        start = self.at
        if self.peek() == "D0":
            place = self.place()
            if isinstance(place, tuple) and self.accept("="):
                return place
        self.at = start
        return None

    def place(self) -> Place | list[Place]:
        if self.accept("{"):
            places = []
            while not self.accept("}"):
                if not self.accept(","):
                    part = self.place()
                    if isinstance(part, list):
                        raise NotComparable("nested places")
                    places.append(part)
            return places
        name = self.take()
        place: Place = (name, 0, 0, "b")
        if name == "VGPR":
            raise NotComparable("addressed registers")
        while self.peek() in (".", "["):
            place = self.narrow(place)
        return place

    def narrow(self, place: Place) -> Place:
        name, first, width, kind = place
        if self.accept("."):
            kind, width = type_of(self.take())
            return name, first, width, kind
        self.take("[")
        high = integer(self.expression())
        if self.accept("+:"):
            low, count = high, integer(self.expression())
        elif self.accept(":"):
            low = integer(self.expression())
            count = high - low + 1
        else:
            low, count = high, 1
        self.take("]")
        if count < 1:
            raise NotComparable("reversed destination")
        return name, first + low, count, "b"

    def load(self, place: Place) -> Value:
        name, first, width, kind = place
        variable = self.variables.get(name)
        if variable is None:
            raise NotComparable(f"variable {name}")
        if width == 0:
            return variable
        return Value(variable.bits >> first & ((1 << width) - 1), width, kind)
