"""Attention of a drafter's stage: a block of rows over itself and the window of context before it.

Context rows are keys alone. They come from the model's hidden states and stand in a ring of a slot, as the model's own
window rows do; a block's rows go behind them, and the next context replaces them.
"""

from __future__ import annotations

import torch

from ..geometry import TILE_SLOTS
from ..linear import Projection
from ..projections import HeadProjections
from ..window import WindowRing, attention_weights
from .block import DraftBlock


class DraftAttention:
    """Weights of one stage under `prefix`, with the ring of its context rows in every working slot."""

    def __init__(
        self, weights: dict[str, torch.Tensor], prefix: str, projections: HeadProjections, slots: int, head_dim: int
    ) -> None:
        self._projections, self._dim = projections, head_dim
        self._wkv = Projection(weights[prefix + "wkv.weight"])
        self._sink = weights[prefix + "attn_sink"]
        self.ring = WindowRing(slots, head_dim)

    def follow(self, hidden: torch.Tensor, positions: torch.Tensor, ring_rows: torch.Tensor) -> None:
        """Store context: hidden float32 [T, hidden] at positions int64 [T], the first n of them to `ring_rows` [n]."""
        rows = self._projections.rows(self._wkv(hidden), positions)
        self._flat[ring_rows] = rows[: ring_rows.shape[0]]

    def forward(self, x: torch.Tensor, block: DraftBlock) -> torch.Tensor:
        """Normalised block input [T, hidden] to the attention output [T, hidden]."""
        read = self._projections.read(x, block.positions)
        self._flat[block.ring_rows] = read.rows[: block.rows]
        keys = self._flat[block.tile_rows].view(block.requests, TILE_SLOTS, self._dim)
        heads = read.queries.shape[1]
        queries = read.queries[: block.rows].reshape(block.requests, -1, self._dim)
        scores = torch.bmm(queries, keys.transpose(1, 2)).add_(block.bias).view(block.rows, heads, TILE_SLOTS)
        weights = attention_weights(scores, self._sink).reshape(block.requests, -1, TILE_SLOTS)
        out = torch.zeros_like(read.queries)
        out[: block.rows] = torch.bmm(weights, keys).view(block.rows, heads, self._dim)
        return self._projections.write(out, block.positions)

    @property
    def _flat(self) -> torch.Tensor:
        return self.ring.rows.view(-1, self._dim)
