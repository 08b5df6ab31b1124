"""V4.1's two-level selection: blocks of consecutive keys by their best score, then keys of the chosen blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.reference.selection import topk


def candidate_blocks(logits: Tensor, lengths: Tensor, count: int, block: int) -> Tensor:
    """See `candidates.candidate_blocks`."""
    rows, columns = logits.shape
    width = -(-columns // block)
    live = torch.full((rows, width * block), float("-inf"), device=logits.device)
    live[:, :columns] = logits.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    column = torch.arange(width * block, device=logits.device)
    live.masked_fill_(column >= lengths.unsqueeze(1), float("-inf"))
    scores = live.view(rows, width, block).amax(-1)
    reach = (lengths + block - 1) // block
    newest = torch.arange(width, device=logits.device) == (reach - 1).unsqueeze(1)
    return topk(scores.masked_fill_(newest, float("inf")), reach.int(), count, by_position=True)
