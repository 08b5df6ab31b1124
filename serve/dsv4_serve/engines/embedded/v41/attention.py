"""One attention layer of V4.1: its own sliding window, and entries that a source before it owns and another chose."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4_kernels import ops
from dsv4_kernels.kv_layout import WIDTH
from dsv4_kernels.kv_pool import KVPool

from ..attend import SlotAttention
from ..entries import EntryStore
from ..rope import RopeTable
from ..window import WindowRing
from .config import V41Config
from .forward_pass import ForwardPass
from .indexer import V41Indexer
from .kv_source import KVSource
from .projections import RowStage, V41Projections


@dataclass(frozen=True, slots=True)
class PoolRows:
    """A pool's rows as float32, by slot."""

    pool: KVPool

    @property
    def width(self) -> int:
        return WIDTH

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Store float32 rows [n, 512] at int64 slots [n]."""
        ops.store_kv(self.pool, rows, slots)

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """The float32 rows [n, 512] at int64 slots [n]."""
        return ops.dequantize_kv(self.pool, slots, dtype=torch.float32)


class V41Attention:
    """Weights and window of one layer.

    `source` owns the entries that it reads (None: window only); `owns` says that the layer feeds it, and `indexer`
    chooses among them if this is an index source. Other layers read the choice of `chooser`.
    """

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        prefix: str,
        config: V41Config,
        rope: RopeTable,
        stage: RowStage,
        slots: int,
        layer: int,
        source: KVSource | None,
        owns: bool,
        indexer: V41Indexer | None,
    ) -> None:
        self._layer, self._chooser = layer, config.index_source_of(layer)
        self._feeds = source if owns else None
        self.indexer = indexer
        entries = None
        if source is not None:
            entries = EntryStore(PoolRows(source.entries), source.ratio, config.index_topk)
        self._slots = SlotAttention(weights[prefix + "attn_sink"], config.head_dim, slots, entries)
        further = [] if self._feeds is None else [self._feeds.input_projection]
        if indexer is not None:
            further.append(indexer.input_projection)
        self._projections = V41Projections(weights, prefix, config, rope, stage, further)

    @property
    def ring(self) -> WindowRing:
        """The sliding window of every working slot."""
        return self._slots.ring

    def forward(self, x: torch.Tensor, of: ForwardPass) -> torch.Tensor:
        """Normalised block input [T, hidden] to the attention output [T, hidden]."""
        positions = of.batch.positions
        read = self._projections.read(x, positions)
        further = list(read.further)
        if self._feeds is not None:
            self._feeds.store(further.pop(0), of)
        if self.indexer is not None:
            of.choices[self._layer] = self.indexer.choose(read.latent, further.pop(0), of)
        chosen = None if self._chooser is None else of.choices[self._chooser]
        return self._projections.write(self._slots.attend(read.queries, read.rows, of.batch, chosen), positions)
