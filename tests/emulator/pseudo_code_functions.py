"""Built-in functions of AMD's pseudo-code."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from emulator.pseudo_code_values import Value, boolean, convert, format_of, integer, is_signalling
from emulator.snippets import BF16, fused


def _special(value: Value) -> bool:
    real = value.real
    return isinstance(real, float)


def _to_integer(function: Callable[[Fraction], int]) -> Callable[[Value], Value]:
    def apply(value: Value) -> Value:
        real = value.real
        if isinstance(real, float):
            return value
        result = function(real)
        return Value.number(Fraction(result) if result else (-0.0 if real < 0 else 0.0), value.width)

    return apply


def _pick(value: Value, target: str, width: int) -> Value:
    return convert(value, "f" if target == "f" else target, width)


def _conversion(name: str) -> Callable[[Value], Value] | None:
    match = re.fullmatch(r"(?:[uif]|bf)\d+_to_(bf|[uif])(\d+)", name)
    if match is None:
        return None
    if match[1] == "bf":
        return lambda value: Value(BF16.pattern(value.real), 16, "w")
    return lambda value: _pick(value, match[1], int(match[2]))


def _fma(a: Value, b: Value, c: Value) -> Value:
    return Value.number(fused(a.real, b.real, c.real), a.width)


def _ldexp(a: Value, b: Value) -> Value:
    return a if _special(a) else Value.number(Fraction(a.real) * Fraction(2) ** integer(b), a.width)


def _exponent(a: Value) -> Value:
    form = format_of(a)
    return Value(a.bits >> form.mantissa_bits & form.top, 32, "i")


def _signext_from_bit(a: Value, width: Value) -> Value:
    bits = integer(width)
    if bits == 0:
        return Value(0, a.width, "i")
    low = a.bits & ((1 << bits) - 1)
    return Value((low - (1 << bits) if low >> bits - 1 else low) & ((1 << a.width) - 1), a.width, "i")


def _square_root(a: Value) -> Value:
    real = a.real
    if isinstance(real, float):
        return Value.number(math.nan if real < 0 else real, a.width)
    if real < 0:
        return Value.number(math.nan, a.width)
    scale = 1 << 700
    return Value.number(Fraction(math.isqrt(real.numerator * scale**2 // real.denominator), scale), a.width)


class _Functions(dict[str, Callable[..., Value]]):
    """Built-in functions; conversions are made from their names."""

    def get(self, name: str, default: object = None) -> Callable[..., Value] | None:  # type: ignore[override]
        return super().get(name) or _conversion(name)


FUNCTIONS = _Functions(
    floor=_to_integer(math.floor),
    ceil=_to_integer(math.ceil),
    trunc=_to_integer(math.trunc),
    fma=_fma,
    ldexp=_ldexp,
    exponent=_exponent,
    sqrt=_square_root,
    sign=lambda a: boolean(bool(a.bits >> a.width - 1)),
    abs=lambda a: (
        Value(a.bits & (1 << a.width - 1) - 1, a.width, "f")
        if a.kind == "f"
        else Value(abs(integer(a)), a.width, a.kind)
    ),
    isNAN=lambda a: boolean(a.real != a.real),
    isSignalNAN=is_signalling,
    isQuietNAN=lambda a: boolean(a.real != a.real and not is_signalling(a).bits),
    cvtToQuietNAN=lambda a: Value.number(math.nan, a.width),
    isEven=lambda a: boolean(not _special(a) and Fraction(a.real) % 2 == 0),
    fract=lambda a: a if _special(a) else Value.number(Fraction(a.real) - math.floor(Fraction(a.real)), a.width),
    signext_from_bit=_signext_from_bit,
    signext=lambda a: Value(integer(Value(a.bits, a.width, "i")) & (1 << 64) - 1, 64, "i"),
)
