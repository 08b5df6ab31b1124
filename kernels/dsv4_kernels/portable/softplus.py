"""sqrt(softplus) inside the portable kernels, operation for operation that of the reference backend.

Launches must say `enable_fp_fusion=False`: a fused multiply-add would round otherwise.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels import softplus as of

LEAST_EXPONENT = tl.constexpr(of.LEAST_EXPONENT)
LOG2E = tl.constexpr(of.LOG2E)
LN2_HIGH = tl.constexpr(of.LN2_HIGH)
LN2_LOW = tl.constexpr(of.LN2_LOW)
ROUNDER = tl.constexpr(of.ROUNDER)
SQRT2 = tl.constexpr(of.SQRT2)
LARGEST = tl.constexpr(of.LARGEST)
EXP = tl.constexpr(of.EXP)
LOG = tl.constexpr(of.LOG)


@triton.jit
def _polynomial(x, C: tl.constexpr, COUNT: tl.constexpr):
    """Horner's rule, highest power first."""
    value = tl.full(x.shape, C[0], tl.float32)
    for i in tl.static_range(1, COUNT):
        value = value * x + C[i]
    return value


@triton.jit
def _exp_minus(a):
    """exp(-a) of a >= 0."""
    x = tl.maximum(-a, LEAST_EXPONENT)
    n = (x * LOG2E + ROUNDER) - ROUNDER
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = (_polynomial(r, EXP, 6) * (r * r) + r) + 1.0
    power = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(-a < LEAST_EXPONENT, 0.0, p * power)


@triton.jit
def _log(u):
    """log(u) of 1 <= u <= 2."""
    high = u > SQRT2
    f = tl.where(high, u * 0.5, u) - 1.0
    n = high.to(tl.float32)
    square = f * f
    y = f * square * _polynomial(f, LOG, 9)
    y = (y + n * LN2_LOW) - square * 0.5
    return (f + y) + n * LN2_HIGH


@triton.jit
def sqrt_softplus(x):
    """float32 scores of logits; of a NaN, whatever comes out."""
    x = tl.minimum(x, LARGEST)
    e = _exp_minus(tl.abs(x))
    u = 1.0 + e
    lost = e - (u - 1.0)
    return tl.sqrt_rn(tl.maximum(x, 0.0) + (_log(u) + tl.div_rn(lost, u)))
