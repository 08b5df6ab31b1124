"""The router on torch: products by a fixed tree, the gate by plain float32 arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import softplus as of
from dsv4_kernels.reference.selection import ordered
from dsv4_kernels.router import MAX_TOPK

ROWS_AT_ONCE = 8
"""Bounds the products of a step to 8 MiB."""


def router_partials(x: Tensor, weight: Tensor, split: int) -> Tensor:
    """See `router.router_partials`. No matrix product: a library picks its order of summation by the batch."""
    parts = -(-x.shape[1] // split)
    out = torch.empty(parts, x.shape[0], weight.shape[0], dtype=torch.float32, device=x.device)
    for part in range(parts):
        of_part = slice(part * split, (part + 1) * split)
        wide = _padded(weight[:, of_part], split)
        for row in range(0, x.shape[0], ROWS_AT_ONCE):
            rows = slice(row, row + ROWS_AT_ONCE)
            out[part, rows] = _tree_sum(_padded(x[rows, of_part], split)[:, None] * wide)
    return out


def router_gate(
    partials: Tensor, bias: Tensor | None, k: int, routed_scaling: float, renormalise: bool
) -> tuple[Tensor, Tensor]:
    """See `router.router_gate`."""
    logits = partials[0].clone()
    for part in partials[1:]:
        logits += part
    lost = logits.isnan()
    # In float64, because torch's float32 root is not always the nearest on a CPU.
    scores = _softplus(logits.clamp(max=of.LARGEST)).double().sqrt().float()
    choice = (scores if bias is None else scores + bias).masked_fill(lost, -torch.inf)
    expert = torch.arange(choice.shape[1], device=choice.device)
    keys = (ordered(choice).long() << 32) | (0xFFFFFFFF - expert)
    chosen = 0xFFFFFFFF - (torch.topk(keys, k, sorted=True).values & 0xFFFFFFFF)
    weights = scores.masked_fill(lost, 0.0).gather(1, chosen)
    scaled = weights * routed_scaling
    if renormalise:
        scaled = scaled / _tree_sum(_padded(weights, MAX_TOPK)).clamp(min=of.LEAST_SUM)[:, None]
    return scaled, chosen.int()


def _padded(x: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(x.float(), (0, columns - x.shape[1]))


def _tree_sum(x: Tensor) -> Tensor:
    """Sum of the last axis, a power of two long, by halving."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def _softplus(x: Tensor) -> Tensor:
    e = _exp_minus(x.abs())
    u = 1.0 + e
    # What the addition lost; e is at most 1, so this difference is exact.
    lost = e - (u - 1.0)
    return x.clamp(min=0.0) + (_log(u) + lost / u)


def _exp_minus(a: Tensor) -> Tensor:
    """exp(-a) of a >= 0."""
    x = (-a).clamp(min=of.LEAST_EXPONENT)
    n = (x * of.LOG2E + of.ROUNDER) - of.ROUNDER
    r = (x - n * of.LN2_HIGH) - n * of.LN2_LOW
    p = (_polynomial(r, of.EXP) * (r * r) + r) + 1.0
    power = ((n.nan_to_num(0.0).int() + 127) << 23).view(torch.float32)
    return (p * power).masked_fill(-a < of.LEAST_EXPONENT, 0.0)


def _log(u: Tensor) -> Tensor:
    """log(u) of 1 <= u <= 2."""
    high = u > of.SQRT2
    f = torch.where(high, u * 0.5, u) - 1.0
    n = high.float()
    square = f * f
    y = f * square * _polynomial(f, of.LOG)
    y = (y + n * of.LN2_LOW) - square * 0.5
    return (f + y) + n * of.LN2_HIGH


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """Horner's rule, highest power first."""
    value = torch.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value
