"""The router of mixture-of-experts layers: logits by a split-K product that is the same in any batch, and the gate.

The product of a row never depends on the batch it stands in: the hidden size is always cut into the same parts, each
part is one float32 partial, and the gate adds the partials in ascending order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dsv4_kernels import backends, check
from dsv4_kernels.counters import Phase
from dsv4_kernels.errors import ArgumentError

SPLIT = 512
"""Hidden dimensions of one partial."""

MAX_EXPERTS = 512
MAX_TOPK = 32


def router_partials(x: Tensor, weight: Tensor, *, phase: Phase | None = None) -> Tensor:
    """float32 [ceil(K / 512), T, E]: partial s is `x[:, 512 s:512 s + 512] @ weight[:, 512 s:512 s + 512].T`.

    `x` bfloat16 [T, K], `weight` bfloat16 [E, K], E at most 512. Products are exact and summed in float32. A row's
    partials are bitwise the same whatever the other rows are and however many. The order of the sum within a partial is
    the backend's, so two backends agree to float32 rounding, and bit for bit where every sum is exact.
    """
    check.tensor("x", x, (torch.bfloat16,), (None, None), check.device_of("x", x))
    check.integer("x.shape[1]", x.shape[1], 1)
    check.tensor("weight", weight, (torch.bfloat16,), (None, x.shape[1]), x.device)
    check.integer("weight.shape[0]", weight.shape[0], 1, MAX_EXPERTS)
    return backends.run("router_partials", phase, x.device).router_partials(x, weight, SPLIT)


def router_gate(
    partials: Tensor,
    bias: Tensor | None,
    k: int,
    *,
    routed_scaling: float = 1.0,
    renormalise: bool = True,
    phase: Phase | None = None,
) -> tuple[Tensor, Tensor]:
    """float32 [T, k] weights and int32 [T, k] experts, best first: those with the highest `score + bias`.

    `partials` float32 [S, T, E] as `router_partials` gives, E at most 512, k at most 32 and E; `bias` float32 [E] or
    None. A logit is the sum of its partials in ascending order; its score is `sqrt(softplus(logit))`. Weights are
    scores without the bias, times `routed_scaling`, and if `renormalise` divided by the sum of the chosen scores or
    1e-20, whichever is larger. Bit for bit the same from every backend.

    The lowest expert wins a tie. A logit of +inf counts as the largest float32, below -87 a score is 0. A NaN logit has
    weight 0 and, like a NaN bias, ranks as -inf: such experts are chosen only where no others are left.
    """
    check.tensor("partials", partials, (torch.float32,), (None, None, None), check.device_of("partials", partials))
    splits, _rows, experts = partials.shape
    check.integer("partials.shape[0]", splits, 1)
    check.integer("partials.shape[2]", experts, 1, MAX_EXPERTS)
    check.dense("partials", partials)
    if bias is not None:
        check.tensor("bias", bias, (torch.float32,), (experts,), partials.device)
    check.integer("k", k, 1, min(experts, MAX_TOPK))
    if not (math.isfinite(routed_scaling) and routed_scaling > 0):
        raise ArgumentError("routed_scaling", routed_scaling, "a finite number > 0")
    backend = backends.run("router_gate", phase, partials.device)
    return backend.router_gate(partials, bias, k, routed_scaling, renormalise)
