"""What all layers share about a pass's decode rows: where they read and write in rings, and which entries close."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .geometry import TILE_SLOTS, TILE_TOKENS, WINDOW


@dataclass(frozen=True, slots=True)
class Closing:
    """Rows that complete a compressed entry: `rows` int64 [m], and the entry's number int64 [m]."""

    rows: torch.Tensor
    entries: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """For n decode rows: positions and slots int64 [n]; indices into a ring seen as [slots * 136, ...].

    `ring_rows` int64 [n] is where each row's own entry goes, `tile_rows` int64 [n * 136] what its tile reads,
    `bias` float32 [n, 1, 136] masks the tile, `closing` holds the completed entries by ratio,
    `last_position` is the largest position.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    ring_rows: torch.Tensor
    tile_rows: torch.Tensor
    bias: torch.Tensor
    closing: dict[int, Closing]
    last_position: int

    @property
    def count(self) -> int:
        return self.positions.shape[0]


def make_plan(positions: torch.Tensor, slots: torch.Tensor) -> DecodePlan:
    """The plan of decode rows at these positions and working slots (int64 [n] each)."""
    first = slots * TILE_SLOTS
    start = positions - positions % TILE_TOKENS - WINDOW
    tile = (start[:, None] + torch.arange(TILE_SLOTS)) % TILE_SLOTS
    return DecodePlan(
        positions,
        slots,
        first + positions % TILE_SLOTS,
        (first[:, None] + tile).view(-1),
        window_bias(positions).unsqueeze(1),
        {ratio: _closing(positions, ratio) for ratio in (4, 128)},
        int(positions.max()),
    )


def window_bias(positions: torch.Tensor) -> torch.Tensor:
    """0 for the tile slots that each position attends to, -inf elsewhere: float32 [n, 136]."""
    start = positions - positions % TILE_TOKENS - WINDOW
    seen = start[:, None] + torch.arange(TILE_SLOTS)
    live = (seen >= (positions - WINDOW + 1).clamp(min=0)[:, None]) & (seen <= positions[:, None])
    return torch.zeros(live.shape).masked_fill_(~live, -torch.inf)


def _closing(positions: torch.Tensor, ratio: int) -> Closing:
    rows = ((positions + 1) % ratio == 0).nonzero().view(-1)
    return Closing(rows, positions[rows] // ratio)
