"""The OCP element formats fp8 (e4m3), bf8 (e5m2) and fp4 (e2m1), by enumeration of their values as fractions."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


@dataclass(frozen=True)
class SmallFormat:
    """A format of `bits` bits; values above the largest magnitude code that is finite are NaN or infinity."""

    bits: int
    mantissa_bits: int
    bias: int
    finite_codes: int
    """Number of finite magnitude codes."""
    infinity: int | None
    nan: int | None

    @cached_property
    def magnitudes(self) -> list[Fraction]:
        """Values of the finite magnitude codes, ascending."""
        values = []
        for code in range(self.finite_codes):
            exponent, mantissa = code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1)
            significand = Fraction(mantissa, 1 << self.mantissa_bits) + (1 if exponent else 0)
            values.append(significand * Fraction(2) ** (max(exponent, 1) - self.bias))
        return values

    @cached_property
    def _grid(self) -> list[Fraction]:
        """Magnitudes and one step beyond the last, to which overflow rounds."""
        return [*self.magnitudes, 2 * self.magnitudes[-1] - self.magnitudes[-2]]

    def value(self, code: int) -> Fraction | float:
        """Exact value of a code; infinities, NaN and -0.0 as floats."""
        sign, magnitude = code >> (self.bits - 1), code & ((1 << (self.bits - 1)) - 1)
        if magnitude == self.infinity:
            return -math.inf if sign else math.inf
        if magnitude >= self.finite_codes:
            return math.nan
        value = self.magnitudes[magnitude]
        if sign:
            return -value if value else -0.0
        return value

    def encode(self, value: Fraction | float, saturate: bool) -> int:
        """Nearest code, ties to even; beyond the largest value that value if `saturate`, else infinity or NaN."""
        sign = int(math.copysign(1, value) < 0 if isinstance(value, float) else value < 0) << (self.bits - 1)
        if value != value:
            return self.nan if self.nan is not None else sign | self.finite_codes - 1
        if isinstance(value, float) and math.isinf(value):
            return sign | self._overflow(saturate)
        magnitude = abs(Fraction(value))
        above = bisect.bisect_left(self._grid, magnitude)
        candidates = [code for code in (above - 1, above) if 0 <= code < len(self._grid)]
        code = min(candidates, key=lambda c: (abs(self._grid[c] - magnitude), c & 1))
        return sign | (code if code < self.finite_codes else self._overflow(saturate))

    def _overflow(self, saturate: bool) -> int:
        code = self.infinity if self.infinity is not None else self.nan
        return self.finite_codes - 1 if saturate or code is None else code

    def same(self, actual: int, expected: int) -> bool:
        """Equal codes, all NaN being one value."""
        first, second = self.value(actual), self.value(expected)
        return actual == expected or (first != first and second != second)

    @cached_property
    def interesting(self) -> list[Fraction | float]:
        """Values near ties, the smallest and the largest ones."""
        m = self.magnitudes
        ties: list[Fraction | float] = [(m[i] + m[i + 1]) / 2 for i in (0, 1, 2, len(m) - 2)]
        step = m[-1] - m[-2]
        edge = m[-1] + step / 2
        tiny = Fraction(1, 1 << 14)
        return [*ties, m[-1], edge, edge * (1 + tiny), edge * (1 - tiny), -edge, math.inf, -math.inf, math.nan, -0.0]


FP8 = SmallFormat(8, 3, 7, 0x7F, None, 0x7F)
BF8 = SmallFormat(8, 2, 15, 0x7C, 0x7C, 0x7F)
FP4 = SmallFormat(4, 1, 1, 8, None, None)
