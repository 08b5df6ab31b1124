"""Constants of a softplus in plain float32 arithmetic, so that every backend gives the same bits.

`exp` and `log` differ between mathematical libraries and GPUs; multiplications, additions, divisions and square roots,
each rounded to nearest, do not. The polynomials are those of the Cephes library's single-precision `expf` and `logf`.
softplus(x) is `max(x, 0) + log1p(exp(-|x|))`: no overflow and no threshold. `reference.router` reads as the definition.
"""

from __future__ import annotations

LEAST_EXPONENT = -87.0
"""Below, `exp` counts as 0: it would be denormal."""

LOG2E = 1.44269504088896341
LN2_HIGH = 0.693359375
LN2_LOW = -2.12194440e-4
ROUNDER = 12582912.0
"""1.5 * 2**23: adding and subtracting it rounds to an integer."""

EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)

LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)

SQRT2 = 1.41421356237309505
LARGEST = 3.4028234663852886e38
LEAST_SUM = 1e-20
"""What a sum of weights is at least, before it divides."""
