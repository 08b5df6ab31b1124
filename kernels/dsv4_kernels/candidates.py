"""V4.1's two-level indexer: choose blocks of 8 keys, then score and select only the keys in them.

A producer layer scores every key and publishes blocks; consumer layers make a candidate table of them, score the page-8
pool through it, and map what they select back to positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import backends, check
from dsv4_kernels.counters import Phase
from dsv4_kernels.dispatch import THRESHOLDS
from dsv4_kernels.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class CandidateTable:
    """A row's candidate blocks as a page table of a page-8 pool.

    `pages` int32 [T, C] (0 past the last block), `lengths` int32 [T] keys that the table holds, `blocks` int32 [T, C]
    ascending, -1 past the last. Key i of the table is position `blocks[i // 8] * 8 + i % 8`.
    """

    pages: Tensor
    lengths: Tensor
    blocks: Tensor


def candidate_blocks(logits: Tensor, lengths: Tensor, count: int, *, phase: Phase | None = None) -> Tensor:
    """int32 [T, count]: the blocks of 8 keys with the highest maximum, in ascending order, padded with -1.

    `logits` float32 [T, n], `lengths` int32 [T]. The newest block (that of the last key) is always among them. The
    lowest block wins a tie; NaN ranks as -inf; columns at and past the length are not looked at.
    """
    check.tensor("logits", logits, (torch.float32,), (None, None), check.device_of("logits", logits))
    check.tensor("lengths", lengths, (torch.int32,), (logits.shape[0],), logits.device)
    check.within("lengths", lengths, 0, logits.shape[1])
    check.integer("count", count, 1)
    backend = backends.run("candidate_blocks", phase, logits.device)
    return backend.candidate_blocks(logits, lengths, count, THRESHOLDS.candidate_block)


def candidate_table(blocks: Tensor, lengths: Tensor, page_table: Tensor, *, page_slots: int = 64) -> CandidateTable:
    """The page-8 table of chosen `blocks` int32 [T, C], as `candidate_blocks` gives them.

    `page_table` int32 [T, P] holds the request's pages of `page_slots` slots; a page-8 pool of the same buffers numbers
    them `page * (page_slots / 8) + block`. The newest block is last, so only the last page of a row is partly filled.
    """
    block = THRESHOLDS.candidate_block
    check.tensor("blocks", blocks, (torch.int32,), (None, None), check.device_of("blocks", blocks))
    rows = blocks.shape[0]
    check.tensor("lengths", lengths, (torch.int32,), (rows,), blocks.device)
    check.tensor("page_table", page_table, (torch.int32,), (rows, None), blocks.device)
    if page_slots < block or page_slots % block:
        raise ArgumentError("page_slots", page_slots, f"a multiple of {block}")
    check.within("blocks", blocks, -1, page_table.shape[1] * (page_slots // block) - 1)
    per_page = page_slots // block
    kept = blocks >= 0
    safe = blocks.clamp(min=0).long()
    pages = page_table.gather(1, safe // per_page) * per_page + (safe % per_page).int()
    count = kept.sum(1)
    newest = (lengths - 1) % block + 1
    compact = torch.where(count > 0, (count - 1) * block + newest, 0)
    return CandidateTable(pages.masked_fill(~kept, 0).int(), compact.int(), blocks)


def candidate_positions(selected: Tensor, table: CandidateTable) -> Tensor:
    """int32 [T, k] positions of `selected` int32 [T, k], key numbers of the table as `ops.topk` gives; -1 stays."""
    block = THRESHOLDS.candidate_block
    check.tensor("selected", selected, (torch.int32,), (table.blocks.shape[0], None), table.blocks.device)
    check.within("selected", selected, -1, table.blocks.shape[1] * block - 1)
    safe = selected.clamp(min=0).long()
    position = table.blocks.gather(1, safe // block) * block + (safe % block).int()
    return torch.where(selected < 0, selected, position).int()
