"""One attention layer: shared-KV heads over the sliding window and, by ratio, compressed entries.

Ratio 0 sees the window only, ratio 128 the window and every compressed entry, ratio 4 the window and the
`index_topk` entries that its indexer picks.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import rms_norm

from dsv4_kernels.kv_pages import KVFormat, KVPages, round_trip

from .batch import ForwardBatch, Segment
from .compressor import Closed, Compressor
from .config import ModelConfig
from .decode_plan import DecodePlan, window_bias
from .entries import EntryStore, entry_scores, weigh_entries
from .indexer import Indexer
from .projections import HeadGeometry, HeadProjections
from .rope import RopeTable
from .window import WindowRing, attention_weights, tile_keys, tile_queries


class Attention:
    """Weights and working state of one layer. `pages` holds its compressed rows (None for ratio 0)."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        prefix: str,
        config: ModelConfig,
        ratio: int,
        rope: RopeTable,
        pages: KVPages | None,
        indexer: Indexer | None,
        slots: int,
        kv_format: KVFormat,
        context_length: int,
    ) -> None:
        self._heads, self._dim, self._ratio, self._rope = config.num_attention_heads, config.head_dim, ratio, rope
        self._rms = config.rms_norm_eps
        self._sink = weights[prefix + "attn_sink"]
        self.indexer = indexer
        self.ring = WindowRing(slots, self._dim)
        self.compressor: Compressor | None = None
        further: list[torch.Tensor] = []
        if ratio:
            name = prefix + "compressor."
            self.compressor = Compressor(ratio, self._dim, weights[name + "ape"], slots)
            self._entry_norm = weights[name + "norm.weight"]
            further.append(torch.cat([weights[name + "wkv.weight"], weights[name + "wgate.weight"]]))
        self.entries: EntryStore | None = None
        if pages is not None:
            self.entries = EntryStore(pages, ratio, config.index_topk if ratio == 4 else -(-context_length // ratio))
        if indexer is not None:
            further.append(torch.cat(indexer.input_projections))
        stored = partial(round_trip, kv_format)
        self._projections = HeadProjections(weights, prefix, head_geometry(config), rope, stored, further)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Normalised block input [T, hidden] to the attention output [T, hidden]."""
        read = self._projections.read(x, batch.positions)
        if self.compressor is not None:
            self._compress(read.further[0], batch)
        chosen = self.indexer.select(read.further[1], read.latent, batch) if self.indexer is not None else None
        out = torch.zeros_like(read.queries)
        if batch.decode is not None:
            out[: batch.decode_rows] = self._attend_decode(read.queries, read.rows, batch, batch.decode, chosen)
        for segment in batch.segments:
            part = None if chosen is None else chosen[segment.rows]
            out[segment.rows] = self._attend_chunk(read.queries[segment.rows], read.rows[segment.rows], segment, part)
        return self._projections.write(out, batch.positions)

    def _compress(self, projected: torch.Tensor, batch: ForwardBatch) -> None:
        """Feed the compressor and store the entries that it completed."""
        assert self.compressor is not None
        assert self.entries is not None
        if batch.decode is not None:
            closed = self.compressor.decode(projected[: batch.decode_rows], batch.decode)
            rows = batch.decode.closing[self._ratio].rows
            self._store(closed, batch.page_table[rows, self.entries.page_column(closed)])
        for segment in batch.segments:
            closed = self.compressor.prefill(projected[segment.rows], segment)
            self._store(closed, segment.pages[self.entries.page_column(closed)])

    def _store(self, closed: Closed, pages: torch.Tensor) -> None:
        assert self.entries is not None
        if closed.entries.numel():
            rows = rms_norm(closed.pooled, (self._dim,), self._entry_norm, self._rms)
            self.entries.write(closed, self._rope.rotate(rows, closed.entries * self._ratio), pages)

    def _attend_decode(
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
        if self.entries is None:
            return torch.bmm(attention_weights(scores, self._sink), keys)
        picked = None if chosen is None else chosen[:count]
        entries, bias = self.entries.read_decode(plan, batch.page_table, picked)
        scores = torch.cat([scores, entry_scores(q[:count], entries).add_(bias)], -1)
        weights = attention_weights(scores, self._sink)
        window = keys.shape[1]
        return torch.bmm(weights[..., :window], keys).add_(weigh_entries(weights[..., window:], entries))

    def _attend_chunk(
        self, q: torch.Tensor, rows: torch.Tensor, segment: Segment, chosen: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention of a chunk's rows: [length, heads, dim]."""
        keys = tile_keys(self.ring.extend(rows, segment))
        window = keys.shape[2]
        positions = torch.arange(segment.start, segment.end)
        scores = torch.bmm(tile_queries(q), keys).view(-1, self._heads, window)[: segment.length]
        scores = scores.add_(window_bias(positions).unsqueeze(1))
        if self.entries is None:
            return self._weigh_tiles(attention_weights(scores, self._sink), keys)
        entries, bias = self.entries.read_chunk(segment, chosen)
        scores = torch.cat([scores, entry_scores(q, entries).add_(bias)], -1)
        weights = attention_weights(scores, self._sink)
        return self._weigh_tiles(weights[..., :window], keys).add_(weigh_entries(weights[..., window:], entries))

    def _weigh_tiles(self, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        out = torch.bmm(tile_queries(weights), keys.transpose(1, 2))
        return out.view(-1, self._heads, self._dim)[: weights.shape[0]]


def head_geometry(config: ModelConfig) -> HeadGeometry:
    """The heads of DeepSeek-V4."""
    return HeadGeometry(
        heads=config.num_attention_heads,
        dim=config.head_dim,
        groups=config.o_groups,
        o_lora_rank=config.o_lora_rank,
        rms_norm_eps=config.rms_norm_eps,
    )
