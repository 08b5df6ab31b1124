"""The bytes that FP4 index keys must have in `split64` pages, by arithmetic of this file's own.

It shares no address with `dsv4_kernels.layout`: a writer and a reader that agree on a wrong place are still wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import formats
from dsv4_kernels.pool import IndexPool

PAGE_SLOTS, GROUPS, HEAD_DIM = 64, 4, 128
LAYOUT = "split64"


def expected_bytes(keys: Tensor, convention: str) -> tuple[Tensor, Tensor]:
    """uint8 payload [n, 64] and scales [n, 4] of float32 `keys` [n, 128] by the named convention."""
    codes, scale = formats.quantize_columns(keys.t().contiguous(), formats.convention(convention))
    low, high = codes[0::2].t(), codes[1::2].t()
    return (low | (high << 4)).contiguous(), scale.t().contiguous()


def found_bytes(pool: IndexPool, slots: list[int]) -> tuple[Tensor, Tensor]:
    """uint8 payload [n, 64] and scales [n, 4] as they lie in the pages of `pool` (split64) at `slots`."""
    payload = pool.payload.contiguous().view(torch.uint8).view(-1)
    scale = pool.scale.contiguous().view(torch.uint8).view(-1)
    rows, scales = [], []
    for slot in slots:
        page, o = divmod(slot, PAGE_SLOTS)
        base = page * PAGE_SLOTS * HEAD_DIM // 2
        rows.append(torch.cat([payload[base + c * 1024 + o * 16 :][:16] for c in range(GROUPS)]))
        at = [page * PAGE_SLOTS * GROUPS + c * 64 + o % 16 * 4 + o // 16 for c in range(GROUPS)]
        scales.append(scale[at])
    return torch.stack(rows), torch.stack(scales)


def decoded(payload: Tensor, scale: Tensor) -> Tensor:
    """float32 [n, 128]: what payload and scales mean."""
    table = torch.tensor([sign * m for sign in (1.0, -1.0) for m in formats.E2M1_MAGNITUDES])
    codes = torch.stack([payload & 15, payload >> 4], -1).flatten(1).long()
    return table[codes] * torch.exp2(scale.float() - 127).repeat_interleave(HEAD_DIM // GROUPS, 1)
