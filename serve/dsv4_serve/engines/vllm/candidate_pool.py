"""V4.1's candidate blocks in vLLM's form: their scores from dense logits, and the pool that consumers gather."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import torch

if TYPE_CHECKING:
    from torch import Tensor

FILL_BYTES = 64 << 20
"""Of mask at a time while a prefill's unseen columns are filled."""


class Gather(TypedDict):
    """The pool of each row: `positions` int32 [rows, blocks], first key of each candidate block, ascending; 0 past the
    last. Slot j of a row is key `positions[j // block] + j % block`. `entries` int32 [rows, blocks] says where a block
    lies: its page times the blocks of a page, plus its number in that page.
    """

    positions: Tensor
    entries: Tensor
    block: int


def build_candidate_gather(
    candidates: Tensor,
    row_ends: Tensor,
    block_table: Tensor,
    kv: Tensor,
    num_heads: int,
    head_dim: int,
    block: int,
) -> tuple[Gather, Tensor]:
    """The pool of `candidates` int32 [rows, blocks], block numbers in any order with -1 for none, and int32 [rows] how
    many of its slots each row sees below `row_ends` int32 [rows].

    Only the newest block may reach past a row's end; ascending order puts it last, so seen slots have no gap.
    """
    absent = torch.iinfo(torch.int32).max
    ordered = candidates.masked_fill(candidates < 0, absent).sort(dim=1).values
    there = ordered != absent
    number = ordered.masked_fill(~there, 0)
    positions = number * block
    seen = (row_ends[:, None] - positions).clamp_(0, block).masked_fill_(~there, 0)
    per_page = kv.shape[1] // block
    entries = block_table.gather(1, (number // per_page).long()) * per_page + number % per_page
    gather = Gather(positions=positions.int(), entries=entries.masked_fill_(~there, 0).int(), block=block)
    return gather, seen.sum(1).int()


def score_blocks(logits: Tensor, lengths: Tensor, block: int, out: Tensor) -> None:
    """Into `out` float32 [rows, blocks] the best of each `block` columns of `logits` [rows, n] below `lengths`.

    Columns that a row does not see become -inf in `logits`.
    """
    width = logits.shape[1]
    column = torch.arange(width, device=logits.device)
    whole = width // block * block
    step = max(1, FILL_BYTES // max(width, 1))
    for first in range(0, logits.shape[0], step):
        part = slice(first, first + step)
        filled = logits[part].masked_fill_(column >= lengths[part, None], float("-inf"))
        out[part, : whole // block] = filled[:, :whole].view(len(filled), -1, block).amax(2)
        if whole < width:
            out[part, whole // block] = filled[:, whole:].amax(1)
