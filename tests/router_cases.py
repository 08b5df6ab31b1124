"""Inputs of the router's tests, and the comparison with the oracle: for any implementation of its operations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

import router_oracle

Gate = Callable[[Tensor, Tensor | None, int, float, bool], tuple[Tensor, Tensor]]
Partials = Callable[[Tensor, Tensor], Tensor]

SHAPES = [(1, 1), (6, 6), (64, 8), (100, 7), (256, 6), (256, 8), (384, 6), (384, 8), (385, 16), (512, 32)]
"""Experts and how many are chosen."""


def inputs(rows: int, hidden: int, experts: int) -> tuple[Tensor, Tensor]:
    x, weight = torch.randn(rows, hidden), torch.randn(experts, hidden) * hidden**-0.5
    return x.bfloat16(), weight.bfloat16()


def hard_partials(splits: int, rows: int, experts: int, step: float) -> Tensor:
    """Multiples of 1 / `step`, so that logits tie; NaN and infinities among them; a row of NaN, one all equal."""
    p = (torch.randn(splits, rows, experts) * torch.tensor([1.0, 4.0, 30.0, 90.0])[:rows, None] * step).round() / step
    for value in (float("nan"), float("inf"), -float("inf")):
        p[torch.rand(p.shape) < 0.004] = value
    p[:, -1] = float("nan")
    p[:, -2] = 0.25
    return p


def check_gate(gate: Gate, experts: int, k: int, step: float) -> None:
    """Bit for bit against the oracle, with and without bias and renormalisation."""
    torch.manual_seed(experts * 64 + k)
    partials = hard_partials(3, 4, experts, step)
    bias = (torch.randn(experts) * step).round() / step
    bias[torch.rand(experts) < 0.02] = float("nan")
    for of, renormalise in ((bias, True), (bias, False), (None, True), (None, False)):
        weights, chosen = gate(partials, of, k, 2.5, renormalise)
        want = router_oracle.gate(partials.numpy(), None if of is None else of.numpy(), k, 2.5, renormalise)
        assert weights.dtype == torch.float32
        assert chosen.dtype == torch.int32
        assert chosen.tolist() == want[1]
        assert weights.tolist() == want[0]


def check_values(partials: Partials, rows: int, hidden: int, experts: int) -> None:
    """Each partial within 2e-6 of float64, relative to the sum of its products' magnitudes."""
    torch.manual_seed(rows + hidden + experts)
    x, weight = inputs(rows, hidden, experts)
    got = partials(x, weight)
    assert got.shape == (-(-hidden // 512), rows, experts)
    assert got.dtype == torch.float32
    for part in range(got.shape[0]):
        a, b = (t[:, 512 * part : 512 * part + 512].double().numpy() for t in (x, weight))
        error = np.abs(got[part].double().numpy() - a @ b.T)
        assert (error <= 2e-6 * (np.abs(a) @ np.abs(b).T)).all()


def check_batches(partials: Partials, hidden: int, experts: int, batches: list[int], total: int = 256) -> None:
    """Rows of `total` are the same bits in every batch, at its start, its end and between."""
    torch.manual_seed(total)
    x, weight = inputs(total, hidden, experts)
    whole = partials(x, weight)
    for n in batches:
        for first in {0, (total - n) // 2, total - n}:
            assert torch.equal(partials(x[first : first + n], weight), whole[:, first : first + n]), (n, first)


def check_row_of_nan_stays_alone(partials: Partials) -> None:
    x, weight = inputs(5, 600, 20)
    clean = partials(x, weight)
    x[2, 7], x[3, 590] = float("nan"), float("inf")
    got = partials(x, weight)
    assert torch.equal(got[:, [0, 1, 4]], clean[:, [0, 1, 4]])
    assert bool(got[0, 2].isnan().all())
    assert torch.equal(got[1, 2], clean[1, 2])
    assert bool(got[1, 3].isinf().all())
