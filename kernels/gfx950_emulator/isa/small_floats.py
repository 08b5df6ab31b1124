"""fp8, bf8, fp6, bf6 and fp4: decoding tables and correctly rounded encoders."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gfx950_emulator.machine.arrays import F64, U32, Array


@dataclass(frozen=True)
class SmallFloat:
    """An OCP element format: sign, exponent, mantissa."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    nan_codes: tuple[int, ...] = ()
    """Magnitude codes that are NaN."""
    infinity_code: int | None = None

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @cached_property
    def table(self) -> F64:
        """Value of every code, sign bit on top."""
        magnitude = np.array([self._magnitude(code) for code in range(1 << (self.bits - 1))])
        return np.concatenate([magnitude, -magnitude])

    @cached_property
    def finite(self) -> F64:
        """Finite non-negative values, ascending; the index is the code."""
        magnitude = self.table[: 1 << (self.bits - 1)]
        return magnitude[: int(np.argmin(np.isfinite(magnitude))) if not np.isfinite(magnitude).all() else None]

    def _magnitude(self, code: int) -> float:
        if code in self.nan_codes:
            return float("nan")
        if code == self.infinity_code:
            return float("inf")
        exponent, mantissa = code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1)
        fraction = mantissa / (1 << self.mantissa_bits)
        if exponent == 0:
            return float(fraction * 2.0 ** (1 - self.bias))
        return float((1 + fraction) * 2.0 ** (exponent - self.bias))

    def encode(self, values: Array, saturate: Array | bool = True) -> U32:
        """Codes (uint32) of values, nearest even.

        Magnitudes that round beyond the largest finite value, and infinities, become that value where `saturate`,
        else infinity or NaN. NaN becomes NaN where the format has one, else the largest value.
        """
        values = np.asarray(values, np.float64)
        magnitude = np.abs(values)
        codes = self.round_magnitude(magnitude)
        overflow_code = self.infinity_code if self.infinity_code is not None else self.nan_code
        if overflow_code is not None:
            codes = np.where(self.overflows(magnitude) & ~np.asarray(saturate), overflow_code, codes)
        nan = self.nan_code if self.nan_code is not None else len(self.finite) - 1
        codes = np.where(np.isnan(values), nan, codes)
        return np.asarray((codes | np.signbit(values).astype(np.int64) << (self.bits - 1)).astype(np.uint32))

    @property
    def nan_code(self) -> int | None:
        return self.nan_codes[-1] if self.nan_codes else None

    def overflows(self, magnitude: Array) -> Array:
        """Whether a magnitude rounds (to nearest even) above the largest finite value."""
        largest, step = float(self.finite[-1]), float(self.finite[-1] - self.finite[-2])
        tie_goes_up = (len(self.finite) - 1) % 2 == 1
        middle = largest + step / 2
        return (magnitude >= middle) if tie_goes_up else (magnitude > middle)

    def round_magnitude(self, magnitude: Array) -> Array:
        """Nearest code on the finite grid, ties to even, saturating."""
        grid = self.finite
        upper = np.searchsorted(grid, magnitude, "left").clip(0, len(grid) - 1)
        lower = (upper - 1).clip(0)
        below, above = magnitude - grid[lower], grid[upper] - magnitude
        nearest = np.where(below < above, lower, np.where(below > above, upper, np.where(lower & 1, upper, lower)))
        return np.where(magnitude >= grid[-1], len(grid) - 1, nearest)


FP8 = SmallFloat("fp8", 4, 3, 7, nan_codes=(0x7F,))
BF8 = SmallFloat("bf8", 5, 2, 15, nan_codes=(0x7D, 0x7E, 0x7F), infinity_code=0x7C)
FP6 = SmallFloat("fp6", 2, 3, 1)
BF6 = SmallFloat("bf6", 3, 2, 3)
FP4 = SmallFloat("fp4", 2, 1, 1)
