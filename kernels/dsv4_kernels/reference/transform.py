"""RMSNorm, RoPE and Hadamard rotation of index vectors, all in float32, on columns.

A batch is held as [128, n]: one row per dimension. Every step is then an element-wise operation on contiguous
rows, fast and independent of n, and each is one correctly rounded IEEE operation, so that another backend can
reproduce the bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.layout import HEAD_DIM

ROPE_DIM = 64
HADAMARD_SCALE = HEAD_DIM**-0.5


def tree_sum(x: Tensor) -> Tensor:
    """Sum over dimension 0 by halving: the order of additions depends on nothing but the length.

    An odd length leaves its last element to be added at the end.
    """
    tail: list[Tensor] = []
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        if x.shape[0] % 2:
            tail.append(x[2 * half])
        x = x[:half] + x[half : 2 * half]
    total = x[0]
    for extra in reversed(tail):
        total = total + extra
    return total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x * (1 / sqrt(mean(x ** 2) + eps)) * weight` over dimension 0 of [128, n]."""
    mean = tree_sum(x * x) * (1.0 / x.shape[0])
    # In float64, because torch's float32 root is not always the nearest on a CPU.
    root = (mean + eps).double().sqrt().float()
    return (x * (1.0 / root)) * weight[:, None]


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (2i, 2i + 1) of the last 64 of 128 dimensions; `x` [128, n, h], `cos` and `sin` [32,
    n, 1].
    """
    even, odd = x[-ROPE_DIM::2], x[-ROPE_DIM + 1 :: 2]
    out = x.clone()
    out[-ROPE_DIM::2] = even * cos - odd * sin
    out[-ROPE_DIM + 1 :: 2] = even * sin + odd * cos
    return out


def hadamard(x: Tensor) -> Tensor:
    """Natural-order 128-point Hadamard transform of each column of [128, n], times 1/sqrt(128).

    Butterflies of distance 1, 2, 4, .. 64 in this order.
    """
    distance = 1
    while distance < x.shape[0]:
        pairs = x.view(x.shape[0] // (2 * distance), 2, distance, x.shape[1])
        out = torch.empty_like(pairs)
        torch.add(pairs[:, 0], pairs[:, 1], out=out[:, 0])
        torch.sub(pairs[:, 0], pairs[:, 1], out=out[:, 1])
        x = out.view(x.shape)
        distance *= 2
    return x.mul_(HADAMARD_SCALE)
