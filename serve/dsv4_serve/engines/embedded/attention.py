"""One attention layer: shared-KV heads over the sliding window and, by ratio, compressed entries.

Ratio 0 sees the window only, ratio 128 the window and every compressed entry, ratio 4 the window and the
`index_topk` entries that its indexer picks.
"""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm

from dsv4_kernels.kv_pages import KVFormat, KVPages, round_trip

from .batch import ForwardBatch, Segment
from .compressor import Closed, Compressor
from .config import ModelConfig
from .decode_plan import DecodePlan, window_bias
from .entries import EntryStore, entry_scores, weigh_entries
from .indexer import Indexer
from .linear import Projection
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
        self._heads, self._dim, self._groups = config.num_attention_heads, config.head_dim, config.o_groups
        self._rms, self._rope, self._ratio = config.rms_norm_eps, rope, ratio
        self._q_norm, self._kv_norm = weights[prefix + "q_norm.weight"], weights[prefix + "kv_norm.weight"]
        self._wq_b = Projection(weights[prefix + "wq_b.weight"])
        wo_a = weights[prefix + "wo_a.weight"].view(self._groups, config.o_lora_rank, -1)
        self._wo_a = wo_a.transpose(1, 2).contiguous()
        self._wo_b = Projection(weights[prefix + "wo_b.weight"])
        self._sink = weights[prefix + "attn_sink"]
        self.indexer, self._kv_format = indexer, kv_format
        self.ring = WindowRing(slots, self._dim)
        self.compressor: Compressor | None = None
        parts = [weights[prefix + "wq_a.weight"], weights[prefix + "wkv.weight"]]
        if ratio:
            name = prefix + "compressor."
            self.compressor = Compressor(ratio, self._dim, weights[name + "ape"], slots)
            self._entry_norm = weights[name + "norm.weight"]
            parts += [weights[name + "wkv.weight"], weights[name + "wgate.weight"]]
        self.entries: EntryStore | None = None
        if pages is not None:
            self.entries = EntryStore(pages, ratio, config.index_topk if ratio == 4 else -(-context_length // ratio))
        if indexer is not None:
            parts += indexer.input_projections
        # Everything that reads the layer's input is one product.
        self._split = [config.q_lora_rank, self._dim]
        if self.compressor is not None:
            self._split.append(self.compressor.width)
        if indexer is not None:
            self._split.append(indexer.input_width)
        self._w_in = Projection(torch.cat(parts))

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Normalised block input [T, hidden] to the attention output [T, hidden]."""
        projected = torch.split(self._w_in(x), self._split, 1)
        latent = rms_norm(projected[0], projected[0].shape[-1:], self._q_norm, self._rms)
        q = self._wq_b(latent).view(-1, self._heads, self._dim)
        q = rms_norm(q, (self._dim,), eps=self._rms)
        q = self._rope.rotate(q, batch.positions).mul_(self._dim**-0.5)
        rows = rms_norm(projected[1], (self._dim,), self._kv_norm, self._rms)
        rows = round_trip(self._kv_format, self._rope.rotate(rows, batch.positions))
        if self.compressor is not None:
            self._compress(projected[2], batch)
        chosen = self.indexer.select(projected[3], latent, batch) if self.indexer is not None else None
        out = torch.zeros_like(q)
        if batch.decode is not None:
            out[: batch.decode_rows] = self._attend_decode(q, rows, batch, batch.decode, chosen)
        for segment in batch.segments:
            part = None if chosen is None else chosen[segment.rows]
            out[segment.rows] = self._attend_chunk(q[segment.rows], rows[segment.rows], segment, part)
        return self._project_out(self._rope.rotate(out, batch.positions, inverse=True))

    def _project_out(self, out: torch.Tensor) -> torch.Tensor:
        """Grouped low-rank output projection: [T, heads, dim] to [T, hidden]."""
        grouped = out.view(out.shape[0], self._groups, -1).transpose(0, 1)
        return self._wo_b(torch.bmm(grouped, self._wo_a).transpose(0, 1).reshape(out.shape[0], -1))

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
