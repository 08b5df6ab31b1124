"""Typed bit patterns of the pseudo-code, their arithmetic, and its built-in functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from emulator.snippets import BF16, F16, F32, F64, Format, fused

_FORMATS = {16: F16, 32: F32, 64: F64}
Number = Fraction | float


class NotComparable(Exception):
    """The pseudo-code uses something that this interpreter does not know."""


@dataclass(frozen=True)
class Value:
    """A bit pattern of `width` bits; kind: u, i, f, b (bits), w (bfloat16)."""

    bits: int
    width: int
    kind: str
    flexible: bool = False
    """An integer literal without a width: takes the other operand's type."""

    @classmethod
    def literal(cls, text: str) -> Value:
        """A number as the pseudo-code writes it."""
        if "." in text:
            return cls.number(float(text.rstrip("F")), 32 if text.endswith("F") else 64)
        digits = text.rstrip("UL")
        value, suffix = int(digits, 0), text[len(digits) :]
        width = 64 if "LL" in suffix else 32
        return cls(value & ((1 << 64) - 1), width, "u" if "U" in suffix else "i", not suffix)

    @classmethod
    def number(cls, value: Number, width: int) -> Value:
        """A float of 16, 32 or 64 bits, rounded once."""
        return cls(_FORMATS[width].pattern(value), width, "f")

    @property
    def real(self) -> Number:
        """The value as a number."""
        if self.kind == "f":
            return format_of(self).value(self.bits)
        if self.kind == "w":
            return BF16.value(self.bits)
        return Fraction(integer(self))

    def extended(self, width: int) -> int:
        """The pattern at another width: signed integers are sign-extended."""
        value = integer(self) if self.kind == "i" else self.bits
        return value & ((1 << width) - 1)


def format_of(value: Value) -> Format:
    """Format of a float."""
    if value.width not in _FORMATS:
        raise NotComparable(f"float of {value.width} bits")
    return _FORMATS[value.width]


def integer(value: Value) -> int:
    """Integer value, signed for kind i."""
    if value.kind == "i" and value.bits >> (value.width - 1) & 1:
        return value.bits - (1 << value.width)
    return value.bits


def boolean(value: bool) -> Value:
    """A one-bit truth value."""
    return Value(int(value), 1, "u")


def convert(value: Value, kind: str, width: int) -> Value:
    """`32'F(x)` and its like."""
    if kind == "f":
        if value.kind == "f" and value.width == width:
            return value
        if value.kind == "f" and value.real != value.real:
            return _resized_nan(value, width)
        if value.kind == "b":
            return Value(value.bits & ((1 << width) - 1), width, "f")
        return Value.number(value.real, width)
    if value.kind in ("f", "w") and kind in ("u", "i"):
        limit = (0, (1 << width) - 1) if kind == "u" else (-(1 << width - 1), (1 << width - 1) - 1)
        return Value(_truncate(value.real, *limit) & ((1 << width) - 1), width, kind)
    return Value(value.extended(width), width, kind)


def _resized_nan(value: Value, width: int) -> Value:
    """NaN at another width, signalling or quiet as before."""
    quiet = not is_signalling(value).bits
    form = _FORMATS[width]
    return Value(form.infinity | (1 << form.mantissa_bits - 1 if quiet else 1), width, "f")


def _truncate(value: Number, low: int, high: int) -> int:
    if value != value:
        return 0
    if isinstance(value, float) and math.isinf(value):
        return high if value > 0 else low
    return min(max(math.trunc(value), low), high)


def logical(operator: str, value: Value) -> Value:
    """Unary operators."""
    if operator == "+":
        return value
    if operator == "!":
        return boolean(value.bits == 0)
    if operator == "-" and value.kind == "f":
        return Value(value.bits ^ 1 << (value.width - 1), value.width, "f")
    bits = -value.bits if operator == "-" else ~value.bits
    return Value(bits & ((1 << value.width) - 1), value.width, "i" if operator == "-" else value.kind, value.flexible)


_COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<>": lambda a, b: a < b or a > b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def arithmetic(operator: str, a: Value, b: Value) -> Value:
    """Binary operators with the usual promotions; integers wrap at the wider width."""
    if operator in ("&&", "||"):
        return boolean(bool(a.bits and b.bits) if operator == "&&" else bool(a.bits or b.bits))
    if "f" in (a.kind, b.kind) or "w" in (a.kind, b.kind):
        return _float_arithmetic(operator, a, b)
    if operator in ("<<", ">>"):
        amount = min(integer(b), 256)
        shifted = integer(a) << amount if operator == "<<" else integer(a) >> amount
        return Value(shifted & ((1 << a.width) - 1), a.width, a.kind)
    kind, width = _promoted(a, b)
    x, y = (integer(Value(v.extended(width), width, kind)) for v in (a, b))
    if operator in _COMPARE:
        return boolean(_COMPARE[operator](Fraction(x), Fraction(y)))
    return Value(_integer_operation(operator, x, y) & ((1 << width) - 1), width, kind, a.flexible and b.flexible)


def _promoted(a: Value, b: Value) -> tuple[str, int]:
    if a.flexible != b.flexible:
        fixed = b if a.flexible else a
        return fixed.kind, fixed.width
    width = max(a.width, b.width)
    return ("i" if a.kind == b.kind == "i" else "u"), width


def _integer_operation(operator: str, x: int, y: int) -> int:
    operations: dict[str, Callable[[int, int], int]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a // b,
        "%": lambda a, b: a % b,
        "&": lambda a, b: a & b,
        "|": lambda a, b: a | b,
        "^": lambda a, b: a ^ b,
        "**": lambda a, b: a**b,
    }
    return operations[operator](x, y)


def _float_arithmetic(operator: str, a: Value, b: Value) -> Value:
    x, y = a.real, b.real
    if operator in _COMPARE:
        return boolean(_COMPARE[operator](x, y))
    width = max(v.width for v in (a, b) if v.kind == "f") if "f" in (a.kind, b.kind) else 32
    if operator == "+":
        return Value.number(fused(x, Fraction(1), y), width)
    if operator == "-":
        negated = logical("-", b if b.kind == "f" else Value.number(y, width)).real
        return Value.number(fused(x, Fraction(1), negated), width)
    if operator == "*":
        zero = -0.0 if (_sign(x) != _sign(y)) else 0.0
        return Value.number(fused(x, y, zero), width)
    if operator == "/":
        return Value.number(_divide(x, y), width)
    raise NotComparable(f"float operator {operator}")


def _sign(value: Number) -> bool:
    return math.copysign(1, value) < 0 if isinstance(value, float) else value < 0


def _divide(x: Number, y: Number) -> Number:
    sign = -1.0 if _sign(x) != _sign(y) else 1.0
    if x != x or y != y or (x == 0 and y == 0):
        return math.nan
    infinite = [isinstance(v, float) and math.isinf(v) for v in (x, y)]
    if all(infinite):
        return math.nan
    if infinite[0] or y == 0:
        return sign * math.inf
    if infinite[1] or x == 0:
        return sign * 0.0
    return Fraction(x) / Fraction(y)


def is_signalling(value: Value) -> Value:
    quiet = value.bits >> format_of(value).mantissa_bits - 1 & 1
    return boolean(value.real != value.real and not quiet)
