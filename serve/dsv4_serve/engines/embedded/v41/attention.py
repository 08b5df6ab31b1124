"""One attention layer of V4.1: its own sliding window, and entries that a source before it owns and another chose."""

from __future__ import annotations

import torch

from ..attend import SlotAttention
from ..rope import RopeTable
from ..window import WindowRing
from .chosen_entries import ChosenEntries
from .config import V41Config
from .forward_pass import ForwardPass
from .indexer import V41Indexer
from .kv_source import KVSource
from .projections import RowStage, V41Projections


class V41Attention:
    """Weights and window of one layer.

    `entries` are those of the layer's index source (None: window only). `feeds` is the KV source that the layer owns,
    and `indexer` chooses entries if the layer is an index source itself.
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
        entries: ChosenEntries | None,
        feeds: KVSource | None,
        indexer: V41Indexer | None,
    ) -> None:
        self._layer, self._chooser = layer, config.index_source_of(layer)
        self._feeds, self.indexer = feeds, indexer
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
