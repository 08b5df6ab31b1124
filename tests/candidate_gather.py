"""Candidate blocks of 8 keys for tests, and what scores of them alone must be."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 8


def random_blocks(lengths: list[int], count: int, seed: int = 0) -> Tensor:
    """int32 [rows, count]: ascending blocks below each row's length, the newest among them, -1 past the last."""
    of = torch.Generator().manual_seed(seed)
    rows = []
    for length in lengths:
        reach = -(-length // BLOCK)
        chosen = torch.randperm(max(reach - 1, 0), generator=of)[: count - 1].tolist()
        found = sorted([*chosen, reach - 1]) if reach else []
        rows.append(found + [-1] * (count - len(found)))
    return torch.tensor(rows, dtype=torch.int32)


def positions(blocks: Tensor) -> Tensor:
    """int64 [rows, count * 8]: the key of each column of a gathered launch."""
    first = blocks.long().clamp(min=0) * BLOCK
    return (first[:, :, None] + torch.arange(BLOCK, device=blocks.device)).flatten(1)


def gathered(dense: Tensor, blocks: Tensor, lengths: Tensor) -> Tensor:
    """Scores `dense` [rows, n] of every key, gathered by written-out positions; -inf past a row's last key."""
    at = positions(blocks)
    seen = (at < lengths[:, None]) & (blocks >= 0).repeat_interleave(BLOCK, 1)
    kept = dense.gather(1, at.clamp(max=dense.shape[1] - 1))
    return kept.masked_fill(~seen, float("-inf"))


def slots(blocks: Tensor, page_table: Tensor, page_slots: int) -> Tensor:
    """int64 [n]: the slots of a pool that the rows' blocks hold."""
    at = positions(blocks)
    page = page_table.long().gather(1, at // page_slots)
    there = (blocks >= 0).repeat_interleave(BLOCK, 1)
    return (page * page_slots + at % page_slots)[there]
