"""Attention of one layer's rows over its sliding window and, beside it, compressed entries.

Every row has the same number of slots: the window's tile, then the entries' slots. That, and one order of summation,
makes decode and prefill bit-identical.
"""

from __future__ import annotations

import torch

from .batch import ForwardBatch, Segment
from .decode_plan import DecodePlan, window_bias
from .entries import EntryStore, entry_scores, weigh_entries
from .window import WindowRing, attention_weights, tile_keys, tile_queries


class SlotAttention:
    """The window of every working slot of a layer, and the entries that it reads (None: window only).

    `sink` float32 [heads] is each head's share of attention that goes nowhere.
    """

    def __init__(self, sink: torch.Tensor, dim: int, slots: int, entries: EntryStore | None) -> None:
        self._sink, self._heads, self._dim, self._entries = sink, sink.shape[0], dim, entries
        self.ring = WindowRing(slots, dim)

    def attend(
        self, queries: torch.Tensor, rows: torch.Tensor, batch: ForwardBatch, chosen: torch.Tensor | None
    ) -> torch.Tensor:
        """Take the rows [T, dim] into the window, and attend: queries [T, heads, dim] to outputs of that shape.

        `chosen` int64 [T, slots] are the entries of each row, None where it reads all.
        """
        out = torch.zeros_like(queries)
        if batch.decode is not None:
            out[: batch.decode_rows] = self._decode(queries, rows, batch, batch.decode, chosen)
        for segment in batch.segments:
            part = None if chosen is None else chosen[segment.rows]
            out[segment.rows] = self._chunk(queries[segment.rows], rows[segment.rows], segment, part)
        return out

    def _decode(
        self,
        q: torch.Tensor,
        rows: torch.Tensor,
        batch: ForwardBatch,
        plan: DecodePlan,
        chosen: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attention of the decode rows: [decode_rows, heads, dim]."""
        count = plan.count
        keys = self.ring.decode(rows[:count], plan)
        scores = torch.bmm(q[:count], keys.transpose(1, 2)).add_(plan.bias)
        if self._entries is None:
            return torch.bmm(attention_weights(scores, self._sink), keys)
        picked = None if chosen is None else chosen[:count]
        entries, bias = self._entries.read_decode(plan, batch.page_table, picked)
        scores = torch.cat([scores, entry_scores(q[:count], entries).add_(bias)], -1)
        weights = attention_weights(scores, self._sink)
        window = keys.shape[1]
        return torch.bmm(weights[..., :window], keys).add_(weigh_entries(weights[..., window:], entries))

    def _chunk(
        self, q: torch.Tensor, rows: torch.Tensor, segment: Segment, chosen: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention of a chunk's rows: [length, heads, dim]."""
        keys = tile_keys(self.ring.extend(rows, segment))
        window = keys.shape[2]
        positions = torch.arange(segment.start, segment.end)
        scores = torch.bmm(tile_queries(q), keys).view(-1, self._heads, window)[: segment.length]
        scores = scores.add_(window_bias(positions).unsqueeze(1))
        if self._entries is None:
            return self._weigh_tiles(attention_weights(scores, self._sink), keys)
        entries, bias = self._entries.read_chunk(segment, chosen)
        scores = torch.cat([scores, entry_scores(q, entries).add_(bias)], -1)
        weights = attention_weights(scores, self._sink)
        return self._weigh_tiles(weights[..., :window], keys).add_(weigh_entries(weights[..., window:], entries))

    def _weigh_tiles(self, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        out = torch.bmm(tile_queries(weights), keys.transpose(1, 2))
        return out.view(-1, self._heads, self._dim)[: weights.shape[0]]
