"""Products that stay in float32 and do not depend on the batch: what a compressor's softmax or a router weighs.

The same cut as the router's: parts of 512 dimensions, each one float32 partial, added in ascending order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import backends, check
from dsv4_kernels.counters import Phase
from dsv4_kernels.router import SPLIT


def linear_float32(x: Tensor, weight: Tensor, *, phase: Phase | None = None) -> Tensor:
    """float32 [T, N]: `x @ weight.T`, never rounded to bfloat16 on its way.

    `x` bfloat16 [T, K], `weight` bfloat16 [N, K]. Products are exact and summed in float32: a row's result is bitwise
    the same whatever the other rows are and however many, and equals the ascending sum of its `router_partials` of the
    same backend. Backends agree to float32 rounding, and bit for bit where every sum is exact.
    """
    check.tensor("x", x, (torch.bfloat16,), (None, None), check.device_of("x", x))
    check.integer("x.shape[1]", x.shape[1], 1)
    check.tensor("weight", weight, (torch.bfloat16,), (None, x.shape[1]), x.device)
    check.integer("weight.shape[0]", weight.shape[0], 1)
    return backends.run("linear_float32", phase, x.device).linear_float32(x, weight, SPLIT)
