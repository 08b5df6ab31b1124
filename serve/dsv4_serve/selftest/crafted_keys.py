"""Index keys that normalisation leaves alone to the last bit, so that the bytes that must be stored are known exactly.

Every group of 32 holds the same magnitudes in another order: all of e2m1's, all its ties, and a zero, times a power
of two of its own. Ties and the zero's sign tell the conventions apart, the powers tell the groups apart. The sum of
squares is the same for each key and has few bits, so an epsilon makes its mean plus epsilon exactly 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.formats import E2M1_MAGNITUDES

TIES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
MAGNITUDES = (*E2M1_MAGNITUDES * 3, *TIES, 0.0)
SCALES = (0.0625, 0.125, 0.25, 0.5)
ROTATED_GROUPS = (2, 3)
"""RoPE turns the last 64 dimensions; there a zero does not keep its sign."""

_SQUARES = sum(m * m for m in MAGNITUDES) * sum(s * s for s in SCALES)
EPSILON = 1.0 - _SQUARES / 128


def crafted_keys(count: int, seed: int) -> Tensor:
    """float32 [count, 128], no two alike."""
    dice = torch.Generator().manual_seed(seed)
    magnitudes, scales = torch.tensor(MAGNITUDES), torch.tensor(SCALES)
    keys = torch.empty(count, 4, 32)
    for key in keys:
        order = torch.randperm(4, generator=dice)
        for group in range(4):
            values = magnitudes[torch.randperm(32, generator=dice)] * scales[order[group]]
            signs = torch.randint(0, 2, (32,), generator=dice) * 2.0 - 1.0
            key[group] = values * signs
            if group in ROTATED_GROUPS:
                key[group] += 0.0
    return keys.view(count, 128)
