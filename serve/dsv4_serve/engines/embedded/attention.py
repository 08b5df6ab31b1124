"""One attention layer: shared-KV heads over the sliding window and, by ratio, compressed entries.

Ratio 0 sees the window only, ratio 128 the window and every compressed entry, ratio 4 the window and the
`index_topk` entries that its indexer picks.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.functional import rms_norm

from dsv4_kernels.kv_pages import KVFormat, KVPages, round_trip

from .attend import SlotAttention
from .batch import ForwardBatch
from .compressor import Closed, Compressor
from .config import CommonConfig, ModelConfig
from .entries import EntryStore
from .indexer import Indexer
from .projections import HeadGeometry, HeadProjections
from .rope import RopeTable
from .window import WindowRing


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
        self._dim, self._ratio, self._rope, self._rms = config.head_dim, ratio, rope, config.rms_norm_eps
        self.indexer = indexer
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
        self._slots = SlotAttention(weights[prefix + "attn_sink"], self._dim, slots, self.entries)
        if indexer is not None:
            further.append(torch.cat(indexer.input_projections))
        stored = partial(round_trip, kv_format)
        self._projections = HeadProjections(weights, prefix, head_geometry(config), rope, stored, further)

    @property
    def ring(self) -> WindowRing:
        """The sliding window of every working slot."""
        return self._slots.ring

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Normalised block input [T, hidden] to the attention output [T, hidden]."""
        read = self._projections.read(x, batch.positions)
        if self.compressor is not None:
            self._compress(read.further[0], batch)
        chosen = self.indexer.select(read.further[1], read.latent, batch) if self.indexer is not None else None
        out = self._slots.attend(read.queries, read.rows, batch, chosen)
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


def head_geometry(config: CommonConfig, norm: bool = True) -> HeadGeometry:
    """The query heads of a model, normalised or not."""
    return HeadGeometry(
        heads=config.num_attention_heads,
        dim=config.head_dim,
        groups=config.o_groups,
        o_lora_rank=config.o_lora_rank,
        rms_norm_eps=config.rms_norm_eps,
        norm=norm,
    )
