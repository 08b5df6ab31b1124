"""Length-aware top-k in which the lowest index wins every tie."""

from __future__ import annotations

import torch
from torch import Tensor

LOWEST = -(2**31)


def topk(logits: Tensor, lengths: Tensor, k: int, by_position: bool) -> Tensor:
    """See `ops.topk`. One integer key per column (score in the high half, column in the low half) makes ties
    exact.
    """
    rows, columns = logits.shape
    width = min(columns, int(lengths.max())) if rows else 0
    out = torch.full((rows, k), -1, dtype=torch.int32, device=logits.device)
    if not width:
        return out
    column = torch.arange(width, device=logits.device)
    score = ordered(logits[:, :width]).masked_fill_(column >= lengths.unsqueeze(1), LOWEST)
    keys = (score.long() << 32) | (0xFFFFFFFF - column)
    best = torch.topk(keys, min(k, width), sorted=True).values
    index = (0xFFFFFFFF - (best & 0xFFFFFFFF)).int()
    index.masked_fill_((best >> 32) == LOWEST, -1)
    out[:, : best.shape[1]] = _ascending(index) if by_position else index
    return out


def _ascending(index: Tensor) -> Tensor:
    """Rows sorted, -1 last."""
    last = torch.iinfo(torch.int32).max
    positions = index.masked_fill(index < 0, last).sort(-1).values
    return positions.masked_fill(positions == last, -1)


def ordered(x: Tensor) -> Tensor:
    """int32 in the order of float32 `x`: both zeros are equal, NaN ranks as -inf, and nothing maps to
    `LOWEST`.
    """
    bits = (x.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf")) + 0.0).view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def topk_slots(
    logits: Tensor,
    lengths: Tensor,
    k: int,
    page_table: Tensor,
    row_to_seq: Tensor | None,
    page_slots: int,
    by_position: bool,
) -> tuple[Tensor, Tensor]:
    """See `ops.topk_slots`."""
    index = topk(logits, lengths, k, by_position)
    seq = torch.arange(len(index), device=index.device) if row_to_seq is None else row_to_seq.long()
    safe = index.clamp(min=0).long()
    page = page_table[seq.unsqueeze(1), safe // page_slots].long()
    return index, (page * page_slots + safe % page_slots).masked_fill_(index < 0, -1)
