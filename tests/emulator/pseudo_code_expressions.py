"""Expressions of AMD's pseudo-code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from emulator.pseudo_code_tokens import type_of
from emulator.pseudo_code_values import NotComparable, Value, arithmetic, convert, integer, logical

_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!=", "<>"),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
)
_LEVELS_HIGH = (("*", "/", "%"), ("**",))


class Expressions(ABC):
    """Parses and evaluates expressions in one go; with `live` off, unknown names and calls are zero."""

    def __init__(self, tokens: Sequence[str], variables: dict[str, Value]) -> None:
        self.tokens, self.variables = tokens, variables
        self.at, self.live = 0, True

    @abstractmethod
    def call(self, name: str) -> Value:
        """Evaluate a call; the name has been read."""

    # Tokens

    def peek(self, offset: int = 0) -> str:
        position = self.at + offset
        return self.tokens[position] if position < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            raise NotComparable(f"{expected or 'more'} expected at {' '.join(self.tokens[self.at : self.at + 5])!r}")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() == token:
            self.at += 1
            return True
        return False

    def expression(self) -> Value:
        condition = self.level(0)
        if not self.accept("?"):
            return condition
        if_true = self.expression()
        self.take(":")
        if_false = self.expression()
        return if_true if condition.bits else if_false

    def level(self, index: int) -> Value:
        levels = (*_LEVELS, *_LEVELS_HIGH)
        if index == len(levels):
            return self.unary()
        left = self.level(index + 1)
        while self.peek() in levels[index]:
            operator = self.take()
            right = self.level(index + 1)
            left = arithmetic(operator, left, right)
        return left

    def unary(self) -> Value:
        if self.peek() in ("-", "+", "!", "~"):
            return logical(self.take(), self.unary())
        value = self.primary()
        while self.peek() in (".", "["):
            value = self.suffix(value)
        return value

    def suffix(self, value: Value) -> Value:
        if self.accept("."):
            kind, width = type_of(self.take())
            return Value(value.extended(width), width, kind)
        self.take("[")
        high = integer(self.expression())
        if self.accept("+:"):
            low, high = high, high + integer(self.expression()) - 1
        else:
            low = integer(self.expression()) if self.accept(":") else high
        self.take("]")
        if high < low:  # bit reversal
            bits = [value.bits >> i & 1 for i in range(high, low + 1)]
            return Value(int("".join(map(str, bits)), 2), low - high + 1, "b")
        return Value(value.bits >> low & ((1 << high - low + 1) - 1), high - low + 1, "b")

    def primary(self) -> Value:
        token = self.take()
        if token == "(":
            value = self.expression()
            self.take(")")
            return value
        if token == "{":
            parts = [self.expression()]
            while self.accept(","):
                parts.append(self.expression())
            self.take("}")
            bits = 0
            for part in parts:
                bits = bits << part.width | part.bits
            return Value(bits, sum(part.width for part in parts), "b")
        if "'" in token:
            return self.sized(token)
        if token[0].isdigit():
            return Value.literal(token)
        if self.peek() == "(":
            return self.call(token)
        return self.named(token)

    def sized(self, token: str) -> Value:
        width, _, rest = token.partition("'")
        if rest in ("U", "I", "F", "B"):
            self.take("(")
            pattern = self.peek().startswith("0x")
            value = self.expression()
            self.take(")")
            if pattern and rest == "F":  # NaN is written as its pattern
                return Value(value.bits & ((1 << int(width)) - 1), int(width), "f")
            return convert(value, rest.lower(), int(width))
        literal = Value.literal(rest)
        if literal.kind == "f":
            return convert(literal, "f", int(width))
        return Value(literal.bits & ((1 << int(width)) - 1), int(width), literal.kind)

    def named(self, token: str) -> Value:
        if token in self.variables:
            return self.variables[token]
        if token == "INF":
            return Value.number(float("inf"), {"f16": 16, "f32": 32}.get(self.peek(1), 64))
        if token == "NAN":
            return Value(0x7FC00000, 32, "f") if self.peek(1) == "f32" else Value.number(float("nan"), 64)
        if token == "WAVE_MODE" and self.peek(1) == "IEEE":
            self.at += 2
            return Value(1, 1, "u")
        if not self.live:
            return Value(0, 64, "b")
        raise NotComparable(f"name {token}")
