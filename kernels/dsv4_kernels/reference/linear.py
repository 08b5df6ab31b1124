"""Float32 products on torch: the router's partials, added in ascending order."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.reference.router import router_partials

OUTPUTS_AT_ONCE = 512
"""As many as a router has: bounds the products of a step to 8 MiB."""


def linear_float32(x: Tensor, weight: Tensor, split: int) -> Tensor:
    """See `linear.linear_float32`."""
    out = torch.empty(x.shape[0], weight.shape[0], dtype=torch.float32, device=x.device)
    for first in range(0, weight.shape[0], OUTPUTS_AT_ONCE):
        columns = slice(first, first + OUTPUTS_AT_ONCE)
        partials = router_partials(x, weight[columns], split)
        total = partials[0]
        for part in partials[1:]:
            total = total + part
        out[:, columns] = total
    return out
