"""What DeepSeek-V4 caches: C4 and C128 rows, C4 index keys, window rows, and the overlap state of C4 compressors.

A page of 256 tokens holds, for every ratio-4 layer, 64 compressed rows and 64 index keys, and for every ratio-128
layer 2 compressed rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dsv4_kernels.kv_pages import KVPages, page_bytes
from dsv4_kernels.pool import IndexPool, IndexSpec

from .compressor import OVERLAP_TOKENS
from .config import PAGE_TOKENS, ModelConfig
from .geometry import WINDOW
from .model_formats import V4_FORMATS, v4_rows
from .options import EngineOptions
from .pools import INDEX_LAYOUTS, CachePools, Share, as_bytes, index_parts, index_spec

C4_ENTRIES, C128_ENTRIES = PAGE_TOKENS // 4, PAGE_TOKENS // 128
FLOAT32 = 4


class V4Pools(CachePools):
    """Rows in `kv_format`: `entries` by layer. `overlap` and `index_overlap` float32 [tails + 1, 4, 2, dim] by ratio-4
    layer.
    """

    def __init__(self, config: ModelConfig, options: EngineOptions, context_length: int) -> None:
        options = V4_FORMATS.settle(options)
        self._config, self.kv_format = config, v4_rows(options)
        spec = index_spec(options, INDEX_LAYOUTS[options.indexer_dtype])
        super().__init__(options, context_length, spec, self._pages_hold_of(spec), self._tails_hold_of())
        count, tails = self.pages.total + 1, self.tails.total + 1
        self.entries = {
            layer: KVPages.allocate(self.kv_format, PAGE_TOKENS // ratio, count, options.device)
            for layer, ratio in enumerate(config.compress_ratios)
            if ratio
        }
        self.index = {layer: IndexPool.allocate(spec, count, options.device) for layer in config.layers_of_ratio(4)}
        self._windows = {
            layer: KVPages.allocate(self.kv_format, WINDOW, tails, options.device)
            for layer in range(config.num_hidden_layers)
        }
        self.overlap = {n: self._state(config.head_dim) for n in config.layers_of_ratio(4)}
        self.index_overlap = {n: self._state(config.index_head_dim) for n in config.layers_of_ratio(4)}

    def write_window(self, layer: int, tail: int, rows: torch.Tensor) -> None:
        """Store a layer's 128 window rows [128, 512] in a tail."""
        self._windows[layer].write(tail * WINDOW + torch.arange(WINDOW), rows)

    def read_window(self, layer: int, tail: int) -> torch.Tensor:
        """A tail's window rows of a layer, float32 [128, 512]."""
        return self._windows[layer].read(tail * WINDOW + torch.arange(WINDOW))

    def page_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        for layer, pages in self.entries.items():
            yield f"c{self._config.compress_ratios[layer]}", pages.buffer
        for pool in self.index.values():
            yield from index_parts(pool, self.pages.total + 1)

    def tail_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        for window in self._windows.values():
            yield "window", window.buffer
        for state in (*self.overlap.values(), *self.index_overlap.values()):
            yield "state", as_bytes(state, self.tails.total + 1)

    def _pages_hold_of(self, spec: IndexSpec) -> list[Share]:
        c4, c128 = (len(self._config.layers_of_ratio(ratio)) for ratio in (4, 128))
        keys = c4 * C4_ENTRIES
        return [
            Share("c4", c4, C4_ENTRIES, c4 * page_bytes(self.kv_format, C4_ENTRIES), main=True),
            Share("c128", c128, C128_ENTRIES, c128 * page_bytes(self.kv_format, C128_ENTRIES), main=True),
            Share("index_payload", c4, C4_ENTRIES, keys * spec.layout.payload_bytes),
            Share("index_scale", c4, C4_ENTRIES, keys * spec.layout.scale_bytes),
        ]

    def _tails_hold_of(self) -> list[Share]:
        layers, c4 = self._config.num_hidden_layers, len(self._config.layers_of_ratio(4))
        widths = self._config.head_dim + self._config.index_head_dim
        return [
            Share("window", layers, WINDOW, layers * page_bytes(self.kv_format, WINDOW)),
            Share("state", c4, OVERLAP_TOKENS, c4 * OVERLAP_TOKENS * 2 * widths * FLOAT32),
        ]

    def _state(self, dim: int) -> torch.Tensor:
        return torch.zeros(self.tails.total + 1, OVERLAP_TOKENS, 2, dim)
