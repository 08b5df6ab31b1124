"""Index keys, scores and top-k without FP4, and the share of one top-k that another found.

The Hadamard rotation is left out: it turns queries and keys alike and changes no product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ROPE_DIM = 64


def index_keys(k: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor, positions: Tensor) -> Tensor:
    """float32 [n, 128]: pooled keys `k` [n, 128] normed by `weight` [128] and turned to int64 `positions` [n]."""
    x = k.float()
    normed = x * (x * x).mean(-1, keepdim=True).add(eps).rsqrt() * weight.float()
    return rope(normed, cos[positions].float(), sin[positions].float())


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The last 64 of 128 dimensions of `x` [..., 128] turned in pairs by `cos`, `sin` [..., 32]."""
    even, odd = x[..., -ROPE_DIM::2], x[..., -ROPE_DIM + 1 :: 2]
    out = x.clone()
    out[..., -ROPE_DIM::2] = even * cos - odd * sin
    out[..., -ROPE_DIM + 1 :: 2] = even * sin + odd * cos
    return out


def scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """float32 [n]: `sum_h weights[h] * relu(<q[h], keys[n]>)` of one row, `q` [H, 128], `weights` [H]."""
    return weights.float() @ (q.float() @ keys.float().T).clamp(min=0)


def recall(served: Tensor, exact: Tensor, k: int) -> Tensor:
    """float32 []: the share of the k best of `exact` [n] that are among the k best of `served` [n]."""
    import torch

    return torch.isin(exact.topk(k).indices, served.topk(k).indices).float().mean()
