"""The paged caches: what is stored for each 256 tokens of context, and how many bytes that is.

A page of 256 tokens holds compressed rows and index keys of every layer that owns some. A tail is what a prefix hit
needs at a page boundary besides pages: the last 128 window rows of every layer, and open state of the compressors where
entries overlap. Page 0 and tail 0 are reserved: masked reads go there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from dsv4_kernels.pool import IndexPool, IndexSpec

from .config import PAGE_TOKENS
from .free_list import FreeList
from .options import EngineOptions, OptionError

DEFAULT_CONTEXTS = 16
"""Pools hold this many full contexts unless sized by an option."""

INDEX_LAYOUTS = {"fp4": "split64", "fp8": "fp8", "bf16": "bf16", "float32": "float32"}


@dataclass(frozen=True, slots=True)
class Region:
    """One kind of cached data in all layers that have it.

    `tokens` counts what one layer stores: tokens of context for main, compressed entries for c1 to c128 and the index,
    window rows for window, overlap tokens for state. `bytes` is for all `layers`; main is all compressed rows together,
    and its bytes a token are for one token of context in all layers. Where layers store different numbers of entries
    `layers` is 1 and `tokens` counts those of all.
    """

    name: str
    tokens: int
    bytes: int
    layers: int

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token in one layer (main: in all layers), padding included."""
        return self.bytes / (self.tokens * self.layers)


@dataclass(frozen=True, slots=True)
class Share:
    """What one page, or one tail, holds of a region: `tokens` of one layer, and `bytes` of all `layers`.

    Compressed rows are `main`.
    """

    region: str
    layers: int
    tokens: int
    bytes: int
    main: bool = False


class CachePools(ABC):
    """All cache tensors of the engine, allocated once, and the free lists of their pages, tails and working slots.

    A generation's pools say what a page and a tail hold (`pages_hold`, `tails_hold`), then allocate it.
    """

    index: Mapping[int, IndexPool]
    """The index keys, by the layer that owns them."""

    def __init__(
        self,
        options: EngineOptions,
        context_length: int,
        spec: IndexSpec,
        pages_hold: Sequence[Share],
        tails_hold: Sequence[Share],
    ) -> None:
        self.spec, self._pages_hold, self._tails_hold = spec, tuple(pages_hold), tuple(tails_hold)
        self.page_bytes = sum(share.bytes for share in pages_hold)
        count = self._page_count(options, context_length)
        self.pages = FreeList("page", count)
        tails = count if options.cached_tails is None else options.cached_tails
        self.tails = FreeList("tail", tails if options.prefix_cache else 0)
        self.slots = FreeList("slot", options.max_running_requests)

    page_tokens = PAGE_TOKENS

    @property
    def working_slots(self) -> int:
        """Working slots, slot 0 included."""
        return self.slots.total + 1

    @property
    def capacity_tokens(self) -> int:
        """Tokens of context that the pages hold."""
        return self.pages.total * PAGE_TOKENS

    @abstractmethod
    def page_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything that a page holds: its region and a layer's tensor, as bytes [pages + 1, n]."""

    @abstractmethod
    def tail_parts(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Everything that a tail holds: its region and a layer's tensor, as bytes [tails + 1, n]."""

    def regions(self) -> list[Region]:
        """Capacity by region. The reserved page and tail are not counted: nothing is ever stored there."""
        return self.regions_of(self.pages.total, self.tails.total)

    def regions_of(self, pages: int, tails: int) -> list[Region]:
        """What `pages` pages and `tails` tails hold by region, in whichever tier they lie."""
        main = sum(share.bytes for share in self._pages_hold if share.main)
        shares = [
            (pages, Share("main", 1, PAGE_TOKENS, main)),
            *((pages, share) for share in self._pages_hold),
            *((tails, share) for share in self._tails_hold),
        ]
        found = [Region(s.region, count * s.tokens, count * s.bytes, s.layers) for count, s in shares]
        return [region for region in found if region.bytes]

    def tokens_of(self, pages: int, tails: int) -> dict[str, int]:
        """Tokens in so many pages and tails by region, in the unit of `Region.tokens`."""
        found = {"main": pages * PAGE_TOKENS}
        found |= {share.region: pages * share.tokens for share in self._pages_hold}
        return found | {share.region: tails * share.tokens for share in self._tails_hold}

    def used_tokens(self) -> dict[str, int]:
        """Tokens in allocated pages and tails by region, in the same unit as `regions`."""
        used = self.tokens_of(self.pages.used, self.tails.used)
        return {region.name: used[region.name] for region in self.regions()}

    def index_bytes_per_token(self) -> float:
        """Bytes of a compressed token in the index pool, from its tensors: 68.0 in FP4."""
        pool = next(iter(self.index.values()), None)
        return pool.bytes_per_token if pool is not None else 0.0

    def _page_count(self, options: EngineOptions, context_length: int) -> int:
        if options.kv_bytes is not None:
            count = options.kv_bytes // self.page_bytes
            if count < 1:
                raise OptionError(f"kv_bytes={options.kv_bytes}: accepted is {self.page_bytes} (one page) or more")
            return count
        tokens = options.max_total_tokens or DEFAULT_CONTEXTS * context_length
        return tokens // PAGE_TOKENS


def index_spec(options: EngineOptions, layout: str) -> IndexSpec:
    """How index keys are stored by settled options, in a named layout."""
    assert options.index_convention is not None
    assert options.hadamard is not None
    return IndexSpec.named(layout, options.index_convention, hadamard=options.hadamard)


def index_parts(pool: IndexPool, pages: int) -> Iterator[tuple[str, torch.Tensor]]:
    """A pool of index keys by region, as bytes [pages, n]: a page of context may be several of the pool's."""
    for spec in pool.spec.layout.tensors:
        region = "index_scale" if spec.name == "scale" else "index_payload"
        yield region, as_bytes(pool.tensors[spec.name], pages)


def as_bytes(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A dense tensor as uint8 [rows, n], a view."""
    return tensor.view(rows, -1).view(torch.uint8)
