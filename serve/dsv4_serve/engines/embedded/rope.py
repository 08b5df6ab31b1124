"""RoPE on the last 64 dimensions, adjacent pairs (2i, 2i+1), with YaRN for the compressed layers."""

from __future__ import annotations

import math

import torch

from .config import CommonConfig, YarnScaling

ROPE_DIM = 64


class RopeTable:
    """cos and sin of every position: float32 [positions, 32] each, pair i in column i."""

    def __init__(self, theta: float, yarn: YarnScaling | None, positions: int) -> None:
        inverse = 1.0 / theta ** (torch.arange(0, ROPE_DIM, 2, dtype=torch.float32) / ROPE_DIM)
        if yarn is not None:
            inverse = _yarn(inverse, theta, yarn)
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * inverse
        self.cos = angles.cos()
        self.sin = angles.sin()
        self._turn = torch.cat([self.cos.repeat_interleave(2, -1), self.sin.repeat_interleave(2, -1)], -1)
        sign = torch.tensor([-1.0, 1.0]).repeat(ROPE_DIM // 2)
        self._turn[:, ROPE_DIM:] *= sign
        self._swap = torch.arange(ROPE_DIM).view(-1, 2).flip(-1).flatten()

    def rotate(self, x: torch.Tensor, positions: torch.Tensor, inverse: bool = False) -> torch.Tensor:
        """Rotate the last 64 of the last dimension of x [T, ..., D] (any D >= 64) in place; returns x.

        `positions` int64 [T]. `inverse` turns back (the attention output carries its keys' rotation).
        """
        turn = self._turn[positions].view(-1, *[1] * (x.dim() - 2), 2 * ROPE_DIM)
        tail = x[..., -ROPE_DIM:]
        # index_select keeps this free of strided complex arithmetic, whose vector and scalar code round differently.
        swapped = tail[..., self._swap] * turn[..., ROPE_DIM:]
        tail.mul_(turn[..., :ROPE_DIM])
        tail.sub_(swapped) if inverse else tail.add_(swapped)
        return x


def _yarn(inverse: torch.Tensor, theta: float, yarn: YarnScaling) -> torch.Tensor:
    """Blend interpolated and original frequencies along a linear ramp between the two correction dimensions."""

    def correction_dim(rotations: float) -> float:
        span = yarn.original_max_position_embeddings / (rotations * 2 * math.pi)
        return ROPE_DIM * math.log(span) / (2 * math.log(theta))

    low = max(math.floor(correction_dim(yarn.beta_fast)), 0)
    high = min(math.ceil(correction_dim(yarn.beta_slow)), ROPE_DIM - 1)
    width = max(high - low, 0.001)
    ramp = ((torch.arange(ROPE_DIM // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return inverse / yarn.factor * ramp + inverse * (1 - ramp)


def rope_tables(config: CommonConfig, positions: int) -> tuple[RopeTable, RopeTable]:
    """(plain table of the ratio-0 layers, YaRN table of the compressed layers)."""
    return (
        RopeTable(config.rope_theta, None, positions),
        RopeTable(config.compress_rope_theta, config.yarn, positions),
    )
