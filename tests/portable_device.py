"""The device that the portable backend's cases run on, and tensors on it: a GPU, or a CPU with Triton's interpreter."""

from __future__ import annotations

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
COMPILED = DEVICE.type == "cuda"
"""Whether kernels are compiled; the interpreter is too slow for large shapes."""

POSITIONS = 300


def on_device(*tensors: Tensor) -> list[Tensor]:
    return [t.to(DEVICE) for t in tensors]


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def angles() -> tuple[Tensor, Tensor]:
    """Cosines and sines of RoPE, float32 [POSITIONS, 32]."""
    angle = torch.arange(POSITIONS)[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    cos, sin = on_device(angle.cos(), angle.sin())
    return cos, sin
