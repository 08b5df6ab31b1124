"""The sliding window of every running request, and attention over window and compressed entries together.

Queries are grouped in tiles of 8 positions: a tile starting at position p0 sees the 136 positions from p0 - 128 on,
each query masked to its own 128. Decode uses the same tile for its one query, so a token's scores, softmax and sums
have the same slots in the same order however it was computed: that makes decode and prefill bit-identical.
"""

from __future__ import annotations

import torch

from .batch import Segment
from .decode_plan import DecodePlan
from .geometry import TILE_SLOTS, TILE_TOKENS, WINDOW


class WindowRing:
    """The last 136 rows of every working slot of one layer, float32 [slots, 136, 512], position p at p % 136.

    Rows are what the cache format makes of them, so a window reads the same before and after it was cached.
    """

    def __init__(self, slots: int, head_dim: int) -> None:
        self.rows = torch.zeros(slots, TILE_SLOTS, head_dim)

    def decode(self, rows: torch.Tensor, plan: DecodePlan) -> torch.Tensor:
        """Store one row [n, 512] a slot, then read the tile of each: [n, 136, 512]."""
        flat = self.rows.view(-1, self.rows.shape[2])
        flat[plan.ring_rows] = rows
        return flat.index_select(0, plan.tile_rows).view(plan.count, TILE_SLOTS, -1)

    def extend(self, rows: torch.Tensor, segment: Segment) -> torch.Tensor:
        """Store a chunk's rows [length, 512]; returns the rows from 128 before it on, padded to whole tiles."""
        past = self.last(segment.slot, segment.start)
        keep = min(segment.length, TILE_SLOTS)
        self.rows[segment.slot, torch.arange(segment.end - keep, segment.end) % TILE_SLOTS] = rows[-keep:]
        return torch.cat([past, rows, rows.new_zeros(-segment.length % TILE_TOKENS, rows.shape[1])])

    def reset(self, slot: int) -> None:
        """Forget a slot's rows: masked rows have weight zero, but zero times NaN would not be zero."""
        self.rows[slot] = 0

    def last(self, slot: int, end: int) -> torch.Tensor:
        """The 128 rows before position `end`: [128, 512]."""
        return self.rows[slot, torch.arange(end - WINDOW, end) % TILE_SLOTS]

    def restore(self, slot: int, end: int, rows: torch.Tensor) -> None:
        """Put the 128 rows before position `end` back."""
        self.rows[slot, torch.arange(end - WINDOW, end) % TILE_SLOTS] = rows


def tile_queries(q: torch.Tensor) -> torch.Tensor:
    """[length, heads, dim] to whole tiles [tiles, 8 * heads, dim], zero-padded."""
    missing = -q.shape[0] % TILE_TOKENS
    if missing:
        q = torch.cat([q, q.new_zeros(missing, *q.shape[1:])])
    return q.reshape(-1, TILE_TOKENS * q.shape[1], q.shape[2])


def tile_keys(rows: torch.Tensor) -> torch.Tensor:
    """The keys of every tile of a chunk from `WindowRing.extend`'s rows: [tiles, 512, 136], a view."""
    return rows.unfold(0, TILE_SLOTS, TILE_TOKENS)


def attention_weights(scores: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Softmax over the slots and one sink a head: scores [n, heads, slots] to weights of the same shape."""
    column = sink.view(1, -1, 1).expand(scores.shape[0], -1, 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]
