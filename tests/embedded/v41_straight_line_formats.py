"""What DeepSeek-V4.1's published inference code rounds values to, written out on torch tensors.

Imports nothing of the project or of an engine. Every function returns float64 values that its format can store.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
HALFWAY = (MAGNITUDES[1:] + MAGNITUDES[:-1]) / 2


def groups_of(x: Tensor, size: int) -> Tensor:
    """`x` [.., n] as [.., n / size, size]."""
    return x.reshape(*x.shape[:-1], -1, size)


def exact(x: Tensor) -> Tensor:
    """No rounding at all."""
    return x


def bfloat16(x: Tensor) -> Tensor:
    """To nearest even, from the float32 that the published code holds there."""
    return x.float().bfloat16().double()


def nearest_e2m1(x: Tensor) -> Tensor:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with x's sign; of two as near, the one with an even code."""
    size = x.abs().clamp(max=6.0)
    code = (size[..., None] > HALFWAY).sum(-1)
    halfway = HALFWAY[code.clamp(max=6)] == size
    code = torch.where(halfway & (code % 2 == 1), code + 1, code)
    return MAGNITUDES[code] * torch.where(torch.signbit(x), -1.0, 1.0).double()


def ceiling_of_two(x: Tensor) -> Tensor:
    """The least power of two that is not below the float32 `x`."""
    mantissa, exponent = torch.frexp(x.float())
    return torch.exp2((exponent - (mantissa == 0.5).int()).double())


def index_fp4(x: Tensor) -> Tensor:
    """Index keys and queries: e2m1, 32 values share a power of two, amax times the float32 sixth of it."""
    groups = groups_of(x.float(), 32)
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126)
    scale = ceiling_of_two(amax * torch.tensor(1 / 6, dtype=torch.float32))
    return (nearest_e2m1(groups.double() / scale) * scale).flatten(-2)


def latent_fp4(x: Tensor) -> Tensor:
    """Compressed KV: e2m1, 16 values share an e4m3 scale of a sixth of their amax, 2^-9 to 448."""
    groups = groups_of(x.float(), 16)
    raw = (groups.abs().amax(-1, keepdim=True) / 6).clamp(2.0**-9, 448.0)
    scale = raw.to(torch.float8_e4m3fn).float()
    values: Tensor = nearest_e2m1((groups / scale).double()) * scale.double()
    return values.flatten(-2)


def window_fp8(x: Tensor) -> Tensor:
    """KV of the window: e4m3, 32 values share a power of two that brings them to 448 or below."""
    groups = groups_of(x.float(), 32)
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4)
    scale = ceiling_of_two(amax * torch.tensor(1 / 448, dtype=torch.float32))
    values: Tensor = (groups / scale.float()).to(torch.float8_e4m3fn).double() * scale
    return values.flatten(-2)


def engram_row(codes: Tensor, scales: Tensor) -> Tensor:
    """Rows of an n-gram table: e4m3 codes [.., d] times the e8m0 scale of their 32, rounded to bfloat16."""
    values = groups_of(codes.float(), 32) * scales.float()[..., None]
    return bfloat16(values.flatten(-2))
