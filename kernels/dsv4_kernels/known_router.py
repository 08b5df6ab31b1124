"""Known answers of the router and of products like its own: integers whose sums are exact, and scores whose order and
ties are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dsv4_kernels.implementation import Implementation

INF = float("inf")
SPLIT = 512
ROWS, EXPERTS, HIDDEN = 3, 20, 600
WHOLE = 251
"""Weights 1 to this, and back to 1: bfloat16 holds no larger integers exactly."""


def _partials(backend: Implementation, device: torch.device) -> str:
    """Row r is all 2 ** r; expert e is e + 1 up to hidden dimension 512 and -(e + 1) past it."""
    x = (2.0 ** torch.arange(ROWS, device=device))[:, None].expand(ROWS, HIDDEN).bfloat16().contiguous()
    sign = torch.where(torch.arange(HIDDEN, device=device) < SPLIT, 1.0, -1.0)
    expert = torch.arange(1.0, EXPERTS + 1, device=device)
    weight = (expert[:, None] * sign).bfloat16().contiguous()
    got = backend.router_partials(x, weight, SPLIT)
    one = torch.outer(2.0 ** torch.arange(ROWS, device=device), expert)
    known = torch.stack([one * SPLIT, one * (SPLIT - HIDDEN)])
    return "" if torch.equal(got, known) else "partials differ from the known ones"


def product_mismatch(
    product: Callable[[Tensor, Tensor], Tensor], device: torch.device, hidden: int = HIDDEN, outputs: int = EXPERTS
) -> str:
    """Empty if `product(x, weight)` is float32 and exact where results have more bits than bfloat16 holds."""
    row = 2.0 ** torch.arange(ROWS, device=device)
    expert = torch.arange(outputs, device=device) % WHOLE + 1.0
    x = row[:, None].expand(ROWS, hidden).bfloat16().contiguous()
    weight = expert[:, None].expand(outputs, hidden).bfloat16().contiguous()
    got = product(x, weight)
    if got.dtype != torch.float32:
        return f"results are {got.dtype}, not torch.float32"
    return "" if torch.equal(got, torch.outer(row, expert) * hidden) else "results differ from the known ones"


def _linear(backend: Implementation, device: torch.device) -> str:
    return linear(backend, device, HIDDEN) or linear(backend, device, 2 * SPLIT + 1)


def linear(backend: Implementation, device: torch.device, hidden: int, outputs: int = EXPERTS) -> str:
    """Known products of a hidden size; past 1,024 also 2^24, 1 and -2^24, whose ascending sum loses the 1."""
    different = product_mismatch(lambda x, weight: backend.linear_float32(x, weight, SPLIT), device, hidden, outputs)
    if different or hidden <= 2 * SPLIT:
        return different
    x, weight = (torch.zeros(n, hidden, dtype=torch.bfloat16, device=device) for n in (ROWS, outputs))
    x[:, : 3 * SPLIT : SPLIT] = torch.tensor([4096.0, 1.0, 4096.0], device=device)
    weight[:, : 3 * SPLIT : SPLIT] = torch.tensor([4096.0, 1.0, -4096.0], device=device)
    added = backend.linear_float32(x, weight, SPLIT)
    return "" if not bool(added.any()) else "partials are not added in ascending order"


def gate(backend: Implementation, device: torch.device, experts: int, k: int) -> str:
    """The best have logits of 36, 49, ... and no bias; expert 0 has the highest, and a bias that forbids it."""
    best = (37 * torch.arange(k, device=device) + 11) % (experts - 1) + 1
    scores = 6.0 + torch.arange(k, device=device)
    logits = torch.full((2, experts), 25.0, device=device)
    logits[:, best] = scores * scores
    logits[:, 0] = 1e4
    bias = torch.zeros(experts, device=device)
    bias[0] = -1e4
    partials = torch.stack([logits - 1.0, torch.ones_like(logits)])
    weights, chosen = backend.router_gate(partials, bias, k, 4.0, True)
    if not torch.equal(chosen.long(), best.flip(0).expand(2, k)):
        return f"experts {chosen.tolist()} differ from the known ones {best.flip(0).tolist()}"
    known = (scores.flip(0) * 4.0 / scores.sum()).expand(2, k)
    return "" if torch.equal(weights, known) else f"weights {weights.tolist()} differ from the known ones"


def _gate(backend: Implementation, device: torch.device) -> str:
    """From 25 on softplus is the logit itself, so scores are square roots; the bias decides who is chosen."""
    nan, largest = float("nan"), torch.finfo(torch.float32).max
    whole = [[36.0, 49.0, 49.0, 36.0, 64.0, nan, -INF], [nan, INF, 25.0, -INF, nan, 25.0, nan], [nan] * 7]
    logits = torch.tensor(whole, device=device)
    partials = torch.stack([logits - 1.0, torch.ones_like(logits)])
    bias = torch.tensor([4.0, 0.0, 0.0, 3.0, -INF, 100.0, 0.0], device=device)
    weights, experts = backend.router_gate(partials, bias, 4, 4.0, True)
    chosen = [[0, 3, 1, 2], [1, 5, 2, 3], [0, 1, 2, 3]]
    if experts.tolist() != chosen:
        return f"experts {experts.tolist()} differ from the known ones {chosen}"
    scores = torch.tensor([[6.0, 6.0, 7.0, 7.0], [largest**0.5, 5.0, 5.0, 0.0], [0.0] * 4])
    known = scores * 4.0 / torch.tensor([[26.0], [largest**0.5], [1.0]])
    return "" if torch.equal(weights.cpu(), known) else f"weights {weights.tolist()} differ from the known ones"


TESTS: dict[str, Callable[[Implementation, torch.device], str]] = {
    "router_partials": _partials,
    "router_gate": _gate,
    "linear_float32": _linear,
}
