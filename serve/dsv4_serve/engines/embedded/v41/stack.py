"""The layers of a V4.1 model, and which of them share KV sources and choices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..options import EngineOptions
from ..rope import RopeTable, rope_tables
from .attention import V41Attention
from .chosen_entries import ChosenEntries
from .config import V41Config
from .forward_pass import ForwardPass
from .indexer import V41Indexer
from .kv_source import KVSource
from .layer import V41Layer
from .pools import V41Pools
from .projections import RowStage


class Stack:
    """`layers` in order, and the attention of each in `attentions`."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        config: V41Config,
        options: EngineOptions,
        pools: V41Pools,
        context_length: int,
    ) -> None:
        self._weights, self._config, self._options, self._pools = weights, config, options, pools
        self._stage = RowStage()
        self._sources: dict[int, KVSource] = {}
        self._entries: dict[int, ChosenEntries] = {}
        plain, yarn = rope_tables(config, context_length)
        self.attentions = [
            self._attention(number, yarn if ratio else plain) for number, ratio in enumerate(config.compress_ratios)
        ]
        self.layers: list[V41Layer[ForwardPass]] = [
            V41Layer(weights, f"layers.{number}.", config, attention)
            for number, attention in enumerate(self.attentions)
        ]

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Within it, what layers share is read once."""
        try:
            yield
        finally:
            for entries in self._entries.values():
                entries.forget()

    def _attention(self, number: int, rope: RopeTable) -> V41Attention:
        """A layer's attention, with the source and the indexer that it owns; sources come before their readers."""
        config, prefix = self._config, f"layers.{number}.attn."
        owner, chooser = config.kv_source_of(number), config.index_source_of(number)
        if number == owner:
            self._sources[number] = KVSource(self._weights, prefix, config, number, rope, self._pools)
        indexer = None
        if number == chooser:
            assert owner is not None
            indexer = self._indexer(number, prefix + "indexer.", rope, self._sources[owner])
        return V41Attention(
            self._weights,
            prefix,
            config,
            rope,
            self._stage,
            self._pools.working_slots,
            number,
            None if chooser is None else self._entries[chooser],
            self._sources.get(number),
            indexer,
        )

    def _indexer(self, number: int, prefix: str, rope: RopeTable, source: KVSource) -> V41Indexer:
        config, options = self._config, self._options
        self._entries[number] = ChosenEntries(source.entries, source.ratio, config.index_topk)
        return V41Indexer(self._weights, prefix, config, number, rope, source, options.index_topk, options.rowgroup)
