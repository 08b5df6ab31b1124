"""Constants of the exponential that weighs gates, in plain float32 arithmetic, so that every backend gives its bits.

e^-a of a >= 0 is 2^-t with t = a * log2(e), at most `LIMIT`. With n the integer nearest to t, 2^-n is an exponent (0 if
n = 127), and 2^(n - t) is a polynomial of t - n in -1/2..1/2 that is 1 at 0. The polynomial's relative error is below
2^-22; the rounding of t adds up to 2^-23 times a.
"""

from __future__ import annotations

LOG2E = 1.44269504088896341
LIMIT = 127.0
ROUNDER = 12582912.0
"""1.5 * 2**23: adding it leaves an integer in the low bits, subtracting it again that integer as float32."""

BITS = 0x4B400000 + 127
"""Bits of `ROUNDER`, plus the exponent of 1."""

COEFFICIENTS = (
    -0.001326472731307149,
    0.009671512991189957,
    -0.05550733581185341,
    0.24022242426872253,
    -0.6931470036506653,
    1.0,
)
"""Of 2^-f, highest power first: the smallest largest relative error for f in -1/2..1/2 with 1 at 0."""
