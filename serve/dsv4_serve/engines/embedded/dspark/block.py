"""What one drafting pass computes, and where its rows lie in the stages' rings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..geometry import TILE_SLOTS, WINDOW
from ..linear import padded


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a request's draft begins: its newest token, that token's position, the working slot, and the position
    `first` from which on the slot's rings hold context."""

    token: int
    position: int
    slot: int
    first: int


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """Blocks of `size` rows for n requests: T = n * size rows, padded to a multiple of 8.

    token_ids, positions: int64 [T]. `anchors` int64 [n] are the requests' newest tokens. Rings are seen as
    [slots * 136, ...]: `ring_rows` int64 [n * size] is where the rows go, `tile_rows` int64 [n * 136] what each
    request reads, `bias` float32 [n, 1, 136] masks that: the 128 positions before the block, as far as they are
    there, and all of the block, the later rows too.
    """

    size: int
    anchors: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    ring_rows: torch.Tensor
    tile_rows: torch.Tensor
    bias: torch.Tensor

    @property
    def requests(self) -> int:
        return self.anchors.shape[0]

    @property
    def rows(self) -> int:
        return self.requests * self.size


def make_block(anchors: Sequence[Anchor], size: int, noise_token: int) -> DraftBlock:
    """Lay out the blocks that begin at these anchors."""
    tokens, starts, slots, first = (
        torch.tensor([getattr(anchor, name) for anchor in anchors]) for name in ("token", "position", "slot", "first")
    )
    rows = len(anchors) * size
    token_ids = torch.full((padded(rows),), noise_token)
    token_ids[:rows:size] = tokens
    positions = torch.zeros(padded(rows), dtype=torch.int64)
    positions[:rows] = (starts[:, None] + torch.arange(size)).view(-1)
    seen = starts[:, None] - WINDOW + torch.arange(TILE_SLOTS)
    live = (seen >= first[:, None]) & (seen < starts[:, None] + size)
    ring = slots[:, None] * TILE_SLOTS
    return DraftBlock(
        size,
        tokens,
        token_ids,
        positions,
        (ring + positions[:rows].view(-1, size) % TILE_SLOTS).view(-1),
        (ring + seen % TILE_SLOTS).view(-1),
        torch.zeros(live.shape).masked_fill_(~live, -torch.inf).unsqueeze(1),
    )
