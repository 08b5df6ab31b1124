"""SGLang's own readers, wrapped so that tests compare values and not tensors' dtypes."""

from __future__ import annotations

import torch
from torch import Tensor


def read_keys(payload: Tensor, scale: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 [n, 64] code pairs and uint8 [n, 4] scale bytes of `slots`, by SGLang's reference reader."""
    from sglang.test.kernels.deepseek_v4.fp4_index_k_reference import read_fp4_index_k_split

    rows, scales = read_fp4_index_k_split(payload, scale, slots, page_size=64)
    return rows.view(torch.uint8), scale_bytes(scales)


def scale_bytes(packed: Tensor) -> Tensor:
    """uint8 [n, 4] of SGLang's int32 [n], whose byte c is the scale of group c."""
    return packed.contiguous().view(torch.uint8).view(-1, 4)


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """float64 [n, 128] of uint8 code pairs [n, 64] and scale bytes [n, 4], by SGLang's FP4 table."""
    from sglang.srt.layers.quantization.fp8 import DSV4_DEQUANT_FP4_TABLE

    pairs = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).long()
    values = DSV4_DEQUANT_FP4_TABLE.double()[pairs].view(-1, 4, 32)
    stored: Tensor = values * torch.exp2(scales.double() - 127).unsqueeze(-1)
    return stored.view(-1, 128)


def query_scales(scale: Tensor, heads: int) -> Tensor:
    """uint8 [T, heads, 4] of a query's swizzled scales [T, 1, 4, 16, 4], one element at a time."""
    out = torch.empty(scale.shape[0], heads, 4, dtype=torch.uint8)
    for h in range(heads):
        out[:, h] = scale[:, 0, :, h % 16, h // 16]
    return out
