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
from .config import PAGE_TOKENS, ModelConfig
from .decode_plan import DecodePlan, window_bias
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
        self.pages, self.indexer, self._kv_format = pages, indexer, kv_format
        self.ring = WindowRing(slots, self._dim)
        self.compressor: Compressor | None = None
        parts = [weights[prefix + "wq_a.weight"], weights[prefix + "wkv.weight"]]
        if ratio:
            name = prefix + "compressor."
            self.compressor = Compressor(ratio, self._dim, weights[name + "ape"], slots)
            self._entry_norm = weights[name + "norm.weight"]
            parts += [weights[name + "wkv.weight"], weights[name + "wgate.weight"]]
            self._entries = config.index_topk if ratio == 4 else -(-context_length // ratio)
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
        per_page = PAGE_TOKENS // self._ratio
        if batch.decode is not None:
            closed = self.compressor.decode(projected[: batch.decode_rows], batch.decode)
            if closed.entries.numel():
                pages = batch.page_table[batch.decode.closing[self._ratio].rows, closed.entries // per_page]
                self._store(closed, pages * per_page + closed.entries % per_page)
        for segment in batch.segments:
            closed = self.compressor.prefill(projected[segment.rows], segment)
            if closed.entries.numel():
                pages = segment.pages[closed.entries // per_page]
                self._store(closed, pages * per_page + closed.entries % per_page)

    def _store(self, closed: Closed, slots: torch.Tensor) -> None:
        assert self.pages is not None
        entry = rms_norm(closed.pooled, (self._dim,), self._entry_norm, self._rms)
        self.pages.write(slots, self._rope.rotate(entry, closed.entries * self._ratio))

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
        if self.pages is None:
            return torch.bmm(attention_weights(scores, self._sink), keys)
        bias, slots = self._entry_slots(plan.positions, chosen, batch.page_table)
        entries = self._read_entries(slots)
        scores = torch.cat([scores, torch.bmm(q[:count], entries.transpose(1, 2)).add_(bias.unsqueeze(1))], -1)
        weights = attention_weights(scores, self._sink)
        window = keys.shape[1]
        return torch.bmm(weights[..., :window], keys).add_(torch.bmm(weights[..., window:], entries))

    def _entry_slots(
        self, positions: torch.Tensor, chosen: torch.Tensor | None, page_table: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(bias float32 [n, entries], pool slots int64 [n, entries]) of the compressed entries that a row sees."""
        if chosen is None:
            chosen = torch.arange(self._entries).expand(positions.shape[0], -1)
            live = chosen < ((positions + 1) // self._ratio)[:, None]
        else:
            chosen = chosen[: positions.shape[0]]
            live = chosen >= 0
        per_page = PAGE_TOKENS // self._ratio
        safe = chosen.masked_fill(~live, 0)
        slots = page_table.gather(1, safe // per_page) * per_page + safe % per_page
        return torch.zeros(live.shape).masked_fill_(~live, -torch.inf), slots.masked_fill_(~live, 0)

    def _read_entries(self, slots: torch.Tensor) -> torch.Tensor:
        """Rows of pool slots [n, entries], float32 [n, entries, dim]; columns that are 0 in all rows are not read."""
        assert self.pages is not None
        live = slots.amax(0).nonzero()
        used = int(live[-1]) + 1 if live.numel() else 0
        entries = torch.zeros(*slots.shape, self._dim)
        if used:
            entries[:, :used] = self.pages.read(slots[:, :used].reshape(-1)).view(slots.shape[0], used, self._dim)
        return entries

    def _attend_chunk(
        self, q: torch.Tensor, rows: torch.Tensor, segment: Segment, chosen: torch.Tensor | None
    ) -> torch.Tensor:
        """Attention of a chunk's rows: [length, heads, dim]."""
        length = segment.length
        known = self.ring.extend(rows, segment)
        keys = tile_keys(known)
        positions = torch.arange(segment.start, segment.end)
        scores = torch.bmm(tile_queries(q), keys).view(-1, self._heads, keys.shape[2])[:length]
        scores = scores + window_bias(positions).unsqueeze(1)
        if self.pages is None:
            weights = attention_weights(scores, self._sink)
            return self._weigh_tiles(weights, keys)
        entries, bias = self._chunk_entries(positions, segment, chosen)
        scores = torch.cat([scores, _entry_scores(q, entries) + bias.unsqueeze(1)], -1)
        weights = attention_weights(scores, self._sink)
        window = self._weigh_tiles(weights[..., : keys.shape[2]], keys)
        return window.add_(_weigh_entries(weights[..., keys.shape[2] :], entries))

    def _weigh_tiles(self, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        out = torch.bmm(tile_queries(weights), keys.transpose(1, 2))
        return out.view(-1, self._heads, self._dim)[: weights.shape[0]]

    def _chunk_entries(
        self, positions: torch.Tensor, segment: Segment, chosen: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries [entries, dim] shared by all rows (ratio 128) or [length, entries, dim] (ratio 4), and the bias."""
        assert self.pages is not None
        per_page = PAGE_TOKENS // self._ratio
        table = segment.pages.unsqueeze(0)
        if chosen is None:
            live, _ = self._entry_slots(positions, None, table.expand(positions.shape[0], -1))
            every = torch.arange(self._entries)
            held = (every // per_page < segment.pages.shape[0]) & (every < segment.end // self._ratio)
            safe = every.masked_fill(~held, 0)
            slots = (segment.pages[safe // per_page] * per_page + safe % per_page).masked_fill_(~held, 0)
            return self.pages.read(slots), live
        count = segment.end // self._ratio
        every = torch.arange(max(count, 1)).masked_fill_(torch.tensor(count == 0), 0)
        known = self.pages.read(segment.pages[every // per_page] * per_page + every % per_page)
        live = chosen >= 0
        bias = torch.zeros(live.shape).masked_fill_(~live, -torch.inf)
        return known[chosen.masked_fill(~live, 0)], bias


def _entry_scores(q: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """[n, heads, dim] with entries [e, dim] or [n, e, dim] to [n, heads, e]."""
    if entries.dim() == 3:
        return torch.bmm(q, entries.transpose(1, 2))
    return (q.reshape(-1, q.shape[2]) @ entries.T).view(q.shape[0], q.shape[1], -1)


def _weigh_entries(weights: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """[n, heads, e] with entries [e, dim] or [n, e, dim] to [n, heads, dim]."""
    if entries.dim() == 3:
        return torch.bmm(weights, entries)
    flat = weights.reshape(-1, weights.shape[2])
    return (flat @ entries).view(weights.shape[0], weights.shape[1], -1)
