"""Rotary positions of DeepSeek-V4: interleaved pairs on the last `qk_rope_head_dim` channels."""

import math

import torch
from torch import Tensor

from dsv4_serve.engines.embedded.config import CommonConfig, YarnScaling


def frequencies(dim: int, theta: float, yarn: YarnScaling | None) -> Tensor:
    """Inverse frequencies, float32 [dim // 2]; with `yarn`, slow channels are interpolated by its factor."""
    exponent = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    plain = 1.0 / theta**exponent
    if yarn is None:
        return plain

    def channel_of(rotations: float) -> float:
        turns = yarn.original_max_position_embeddings / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(theta))

    low = max(math.floor(channel_of(yarn.beta_fast)), 0)
    high = min(math.ceil(channel_of(yarn.beta_slow)), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / yarn.factor * ramp + plain * (1 - ramp)


class RopeTable:
    """cos and sin, float32 [positions, rope_dim // 2], on the device of the model."""

    def __init__(self, config: CommonConfig, positions: int, compressed: bool, device: torch.device) -> None:
        theta = config.compress_rope_theta if compressed else config.rope_theta
        yarn = config.yarn if compressed else None
        inverse = frequencies(config.qk_rope_head_dim, theta, yarn).to(device)
        angles = torch.arange(positions, device=device, dtype=torch.float32)[:, None] * inverse
        self.cos, self.sin = angles.cos(), angles.sin()

    def rotate(self, x: Tensor, stride: int = 1, inverse: bool = False) -> Tensor:
        """Rotate x [batch, length, (heads,) dim]; row i stands at position i * stride. Keeps shape and dtype."""
        cos, sin = self.cos[: x.shape[1] * stride : stride], self.sin[: x.shape[1] * stride : stride]
        if x.ndim == 4:
            cos, sin = cos[:, None], sin[:, None]
        if inverse:
            sin = -sin
        width = 2 * cos.shape[-1]
        plain, turned = x[..., :-width], torch.unflatten(x[..., -width:].float(), -1, (-1, 2))
        even, odd = turned[..., 0], turned[..., 1]
        rotated = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
        return torch.cat((plain, rotated.to(x.dtype)), dim=-1)
