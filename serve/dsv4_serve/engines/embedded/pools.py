"""The paged caches: what is stored for each 256 tokens of context, and how many bytes that is.

A page of 256 tokens holds, for every ratio-4 layer, 64 compressed rows and 64 index keys, and for every ratio-128
layer 2 compressed rows. A tail is what a prefix hit needs at a page boundary besides pages: the last 128 window rows
of every layer and the overlap state of the compressors. Page 0 and tail 0 are reserved: masked reads go there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from dsv4_kernels.kv_pages import KVPages, page_bytes
from dsv4_kernels.pool import IndexPool, IndexSpec

from .compressor import OVERLAP_TOKENS
from .config import PAGE_TOKENS, ModelConfig
from .free_list import FreeList
from .geometry import WINDOW
from .options import EngineOptions, OptionError

DEFAULT_CONTEXTS = 16
"""Pools hold this many full contexts unless sized by an option."""

INDEX_LAYOUTS = {"fp4": "split64", "fp8": "fp8", "bf16": "bf16", "float32": "float32"}


@dataclass(frozen=True, slots=True)
class Region:
    """One kind of cached data in all layers that have it.

    `tokens` counts what one layer stores: tokens of context for main, compressed entries for c4, c128 and the index,
    window rows for window, overlap tokens for state. `bytes` is for all `layers`; main is c4 and c128 together, and
    its bytes a token are for one token of context in all layers.
    """

    name: str
    tokens: int
    bytes: int
    layers: int

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token in one layer (main: in all layers), padding included."""
        return self.bytes / (self.tokens * self.layers)


class CachePools:
    """All cache tensors of the engine, allocated once, and the free lists of their pages, tails and working slots."""

    def __init__(self, config: ModelConfig, options: EngineOptions, context_length: int) -> None:
        self._config, self._format = config, options.kv_dtype
        layout = INDEX_LAYOUTS[options.indexer_dtype]
        self.spec = IndexSpec.named(layout, options.index_convention, hadamard=options.hadamard)
        self.page_bytes = self._bytes_per_page()
        count = self._page_count(options, context_length)
        self.pages = FreeList("page", count)
        tails = count if options.cached_tails is None else options.cached_tails
        self.tails = FreeList("tail", tails if options.prefix_cache else 0)
        self.slots = FreeList("slot", options.max_running_requests)
        self.entries = {
            layer: KVPages.allocate(options.kv_dtype, PAGE_TOKENS // ratio, count + 1, options.device)
            for layer, ratio in enumerate(config.compress_ratios)
            if ratio
        }
        self.index = {
            layer: IndexPool.allocate(self.spec, count + 1, options.device) for layer in config.layers_of_ratio(4)
        }
        self._windows = {
            layer: KVPages.allocate(options.kv_dtype, WINDOW, self.tails.total + 1, options.device)
            for layer in range(config.num_hidden_layers)
        }
        self.overlap = {n: self._state(config.head_dim) for n in config.layers_of_ratio(4)}
        self.index_overlap = {n: self._state(config.index_head_dim) for n in config.layers_of_ratio(4)}

    page_tokens = PAGE_TOKENS

    @property
    def working_slots(self) -> int:
        """Working slots, slot 0 included."""
        return self.slots.total + 1

    @property
    def capacity_tokens(self) -> int:
        """Tokens of context that the pages hold."""
        return self.pages.total * PAGE_TOKENS

    def write_window(self, layer: int, tail: int, rows: torch.Tensor) -> None:
        """Store a layer's 128 window rows [128, 512] in a tail."""
        self._windows[layer].write(tail * WINDOW + torch.arange(WINDOW), rows)

    def read_window(self, layer: int, tail: int) -> torch.Tensor:
        """A tail's window rows of a layer, float32 [128, 512]."""
        return self._windows[layer].read(tail * WINDOW + torch.arange(WINDOW))

    def page_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything that a page holds: its region and a layer's tensor, as bytes [pages + 1, n]."""
        for layer, pages in self.entries.items():
            yield f"c{self._config.compress_ratios[layer]}", pages.buffer
        for pool in self.index.values():
            for spec in pool.spec.layout.tensors:
                region = "index_scale" if spec.name == "scale" else "index_payload"
                yield region, _as_bytes(pool.tensors[spec.name])

    def tail_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything that a tail holds: its region and a layer's tensor, as bytes [tails + 1, n]."""
        for window in self._windows.values():
            yield "window", window.buffer
        for state in (*self.overlap.values(), *self.index_overlap.values()):
            yield "state", _as_bytes(state)

    def regions(self) -> list[Region]:
        """Capacity by region. The reserved page and tail are not counted: nothing is ever stored there."""
        return self.regions_of(self.pages.total, self.tails.total)

    def regions_of(self, pages: int, tails: int) -> list[Region]:
        """What `pages` pages and `tails` tails hold by region, in whichever tier they lie."""
        layout, c4, c128 = self.spec.layout, *(len(self._config.layers_of_ratio(r)) for r in (4, 128))
        tokens = self.tokens_of(pages, tails)
        entries = tokens["index_payload"]
        c4_bytes = pages * c4 * page_bytes(self._format, PAGE_TOKENS // 4)
        c128_bytes = pages * c128 * page_bytes(self._format, PAGE_TOKENS // 128)
        layers = self._config.num_hidden_layers
        state = tails * sum(_bytes(t[:1]) for t in (*self.overlap.values(), *self.index_overlap.values()))
        found = [
            Region("main", tokens["main"], c4_bytes + c128_bytes, 1),
            Region("c4", tokens["c4"], c4_bytes, c4),
            Region("c128", tokens["c128"], c128_bytes, c128),
            Region("index_payload", entries, entries * c4 * layout.payload_bytes, c4),
            Region("index_scale", entries, entries * c4 * layout.scale_bytes, c4),
            Region("window", tokens["window"], tails * layers * page_bytes(self._format, WINDOW), layers),
            Region("state", tokens["state"], state, c4),
        ]
        return [region for region in found if region.bytes]

    def tokens_of(self, pages: int, tails: int) -> dict[str, int]:
        """Tokens in so many pages and tails by region, in the unit of `Region.tokens`."""
        per_page = {"main": PAGE_TOKENS, "c4": 64, "c128": 2, "index_payload": 64, "index_scale": 64}
        per_tail = {"window": WINDOW, "state": OVERLAP_TOKENS}
        return {name: pages * n for name, n in per_page.items()} | {name: tails * n for name, n in per_tail.items()}

    def used_tokens(self) -> dict[str, int]:
        """Tokens in allocated pages and tails by region, in the same unit as `regions`."""
        used = self.tokens_of(self.pages.used, self.tails.used)
        return {region.name: used[region.name] for region in self.regions()}

    def index_bytes_per_token(self) -> float:
        """Bytes of a compressed token in the index pool, from its tensors: 68.0 in FP4."""
        pool = next(iter(self.index.values()), None)
        return pool.bytes_per_token if pool is not None else 0.0

    def _state(self, dim: int) -> torch.Tensor:
        return torch.zeros(self.tails.total + 1, OVERLAP_TOKENS, 2, dim)

    def _bytes_per_page(self) -> int:
        layout = self.spec.layout
        index = (layout.payload_bytes + layout.scale_bytes) * (PAGE_TOKENS // 4)
        total = len(self._config.layers_of_ratio(4)) * (page_bytes(self._format, PAGE_TOKENS // 4) + index)
        return total + len(self._config.layers_of_ratio(128)) * page_bytes(self._format, PAGE_TOKENS // 128)

    def _page_count(self, options: EngineOptions, context_length: int) -> int:
        if options.kv_bytes is not None:
            count = options.kv_bytes // self.page_bytes
            if count < 1:
                raise OptionError(f"kv_bytes={options.kv_bytes}: accepted is {self.page_bytes} (one page) or more")
            return count
        tokens = options.max_total_tokens or DEFAULT_CONTEXTS * context_length
        return tokens // PAGE_TOKENS


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(tensor.shape[0], -1).view(torch.uint8)
