"""What DeepSeek-V4.1 caches: FP4 rows and FP4 index keys of the layers that own some, and window rows of every layer.

A page of 256 tokens holds, for every KV source of ratio 2, 128 compressed rows and 128 index keys, and for one of ratio
1 256 of each; layers that share them store nothing. A pair of tokens never crosses a page, so that a tail is the window
alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from dsv4_kernels import ops
from dsv4_kernels.kv_layout import V41, V41_FP4
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.layout import LAYOUTS
from dsv4_kernels.pool import IndexPool, IndexSpec

from ..config import PAGE_TOKENS
from ..geometry import WINDOW
from ..model_formats import V41_FORMATS
from ..options import EngineOptions, OptionError
from ..pools import INDEX_LAYOUTS, CachePools, Share, index_parts, index_spec
from .config import V41Config

PAGE8 = "split8"


class V41Pools(CachePools):
    """`entries` and `index` by the KV source that owns them.

    With `page8` the keys of ratio 1 lie in pages of 8, as candidate tables need them; `spec` is that of the others.
    Raises OptionError for `page8` where there are none.
    """

    def __init__(self, config: V41Config, options: EngineOptions, context_length: int) -> None:
        options = V41_FORMATS.settle(options)
        self._config = config
        spec = index_spec(options, INDEX_LAYOUTS[options.indexer_dtype])
        super().__init__(options, context_length, spec, self._pages_hold_of(spec), self._tails_hold_of())
        count, tails = self.pages.total + 1, self.tails.total + 1
        self.entries = {
            layer: KVPool.allocate(V41_FP4, self.entries_per_page(layer), count, options.device)
            for layer in config.kv_source_layer_ids
        }
        small = IndexSpec(LAYOUTS[PAGE8], spec.convention, spec.hadamard)
        eights = [i for i in self.entries if options.page8 and config.compress_ratios[i] == 1]
        if options.page8 and not eights:
            raise OptionError("page8=True: accepted is False for this model, no layer of which owns keys of ratio 1")
        self.index = {
            layer: self._allocate_index(small if layer in eights else spec, layer, options.device)
            for layer in self.entries
        }
        self._windows = [KVPool.allocate(V41, WINDOW, tails, options.device) for _ in range(config.num_hidden_layers)]

    def entries_per_page(self, layer: int) -> int:
        """Compressed entries that a page of context has at a KV source."""
        return PAGE_TOKENS // self._config.compress_ratios[layer]

    def write_window(self, layer: int, tail: int, rows: torch.Tensor) -> None:
        """Store a layer's 128 window rows [128, 512] in a tail."""
        ops.store_kv(self._windows[layer], rows, tail * WINDOW + torch.arange(WINDOW))

    def read_window(self, layer: int, tail: int) -> torch.Tensor:
        """A tail's window rows of a layer, float32 [128, 512]."""
        return ops.dequantize_kv(self._windows[layer], tail * WINDOW + torch.arange(WINDOW), dtype=torch.float32)

    def page_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        for layer, pool in self.entries.items():
            yield f"c{self._config.compress_ratios[layer]}", pool.pages
        for keys in self.index.values():
            yield from index_parts(keys, self.pages.total + 1)

    def tail_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        for window in self._windows:
            yield "window", window.pages

    def _allocate_index(self, spec: IndexSpec, layer: int, device: str) -> IndexPool:
        pages = (self.pages.total + 1) * self.entries_per_page(layer) // spec.layout.page_slots
        return IndexPool.allocate(spec, pages, device)

    def _pages_hold_of(self, spec: IndexSpec) -> list[Share]:
        shares = []
        for ratio in (1, 2):
            rows = PAGE_TOKENS // ratio
            layers = sum(self._config.compress_ratios[i] == ratio for i in self._config.kv_source_layer_ids)
            shares.append(Share(f"c{ratio}", layers, rows, layers * V41_FP4.page_bytes(rows), main=True))
        # Sources of both ratios together: their pages hold different numbers of keys.
        keys = sum(share.layers * share.tokens for share in shares)
        return [
            *shares,
            Share("index_payload", 1, keys, keys * spec.layout.payload_bytes),
            Share("index_scale", 1, keys, keys * spec.layout.scale_bytes),
        ]

    def _tails_hold_of(self) -> list[Share]:
        layers = self._config.num_hidden_layers
        return [Share("window", layers, WINDOW, layers * V41.page_bytes(WINDOW))]
