"""What a KV cache costs: bytes by region that grow with tokens, and bytes that a server always holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.row_formats import PAGE_TOKENS, IndexFormat, RowFormat, compressed_format

RATIOS = (1, 2, 4, 128)
REGION_OF_RATIO = {1: "main", 2: "main", 4: "c4", 128: "c128"}


@dataclass(frozen=True, slots=True)
class Demand:
    """Bytes of one token of context by region, all layers together, and fixed bytes by region.

    `page_padding` is what a pool of low-ratio layers holds beside its tokens; zero elsewhere.
    """

    per_token: Mapping[str, float]
    fixed: Mapping[str, int]
    page_padding: int = 0

    @property
    def bytes_per_token(self) -> float:
        return sum(self.per_token.values())

    @property
    def fixed_bytes(self) -> int:
        return sum(self.fixed.values()) + self.page_padding

    def capacity(self, available: int) -> int:
        """Tokens of context, in whole pages, that `available` bytes hold; 0 when the fixed part does not fit."""
        tokens = int(max(available - self.fixed_bytes, 0) / self.bytes_per_token)
        return tokens // PAGE_TOKENS * PAGE_TOKENS

    def bytes_at(self, tokens: int) -> dict[str, int]:
        """Bytes by region of a pool of `tokens`."""
        names = dict.fromkeys([*self.per_token, *self.fixed])
        return {name: int(self.per_token.get(name, 0.0) * tokens) + self.fixed.get(name, 0) for name in names}


def latent_bytes(main: RowFormat, ratio: int) -> float:
    """Bytes of compressed KV that one token of context adds to one owning layer of `ratio`."""
    return compressed_format(main, ratio).bytes_per_row(PAGE_TOKENS // ratio) / ratio


def compressed_per_token(
    geometry: ModelGeometry, main: RowFormat, index: IndexFormat, regions: Mapping[int, str] = REGION_OF_RATIO
) -> dict[str, float]:
    """Bytes a token by region for everything that compression stores: latents, by the regions of ratios, and keys."""
    found: dict[str, float] = {}
    for ratio in RATIOS:
        if owners := geometry.owners(ratio):
            region = regions[ratio]
            found[region] = found.get(region, 0.0) + owners * latent_bytes(main, ratio)
    keys = sum(1 / ratio for ratio in geometry.index_ratios())
    found |= {"index_payload": keys * index.payload, "index_scale": keys * index.scale}
    return {region: size for region, size in found.items() if size}


def index_bytes_per_token(geometry: ModelGeometry, index: IndexFormat) -> float:
    """Bytes of index keys that one token of context costs in all layers: 693 or 357 for V4-Flash."""
    return sum(index.bytes_per_key / ratio for ratio in geometry.index_ratios())
