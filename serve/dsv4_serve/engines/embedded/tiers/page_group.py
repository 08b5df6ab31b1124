"""A page group: everything that a prefix needs of one page, in regions that travel together.

Payload and scales of the index keys are regions of their own, as they are tensors of their own in the pools: copying
one without the other gives keys that decode to plausible nonsense. A group therefore has all page regions or is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..pools import CachePools

TAIL_REGIONS = ("window", "state")
"""What continuing after the page needs, as far as the model keeps it; the other regions are the page itself."""


@dataclass(frozen=True, slots=True, eq=False)
class PageGroup:
    """One page of a prefix, named by it. `regions` hold bytes, uint8 [n], of all layers one after another.

    `parent` names the prefix before this page, `tokens` are the page's own. Without the regions of a tail a hit can
    pass through this page and not end at it.
    """

    prefix: bytes
    parent: bytes
    tokens: tuple[int, ...]
    regions: Mapping[str, torch.Tensor]

    @property
    def has_tail(self) -> bool:
        return any(name in self.regions for name in TAIL_REGIONS)


class PageCopier:
    """Copies page groups out of the engine's pools and back. `page_sizes` and `tail_sizes` are bytes by region."""

    def __init__(self, pools: CachePools) -> None:
        self._pages, self._tails = list(pools.page_parts()), list(pools.tail_parts())
        self.page_sizes, self.tail_sizes = _sizes(self._pages), _sizes(self._tails)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes by region of a group with a tail."""
        return self.page_sizes | self.tail_sizes

    @property
    def bytes(self) -> int:
        """Bytes of a group with a tail."""
        return sum(self.sizes.values())

    def save(self, page: int, tail: int | None) -> dict[str, torch.Tensor]:
        """The bytes of a page, and of a tail if there is one, in host memory."""
        regions = _gather(self._pages, page, self.page_sizes)
        if tail is not None:
            regions |= _gather(self._tails, tail, self.tail_sizes)
        return regions

    def load(self, regions: Mapping[str, torch.Tensor], page: int, tail: int | None) -> None:
        """Put a group's bytes into a page, and into a tail if one is given."""
        _scatter(self._pages, page, regions)
        if tail is not None:
            _scatter(self._tails, tail, regions)


Parts = list[tuple[str, torch.Tensor]]


def _sizes(parts: Parts) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for region, tensor in parts:
        sizes[region] = sizes.get(region, 0) + tensor.shape[1]
    return sizes


def _gather(parts: Parts, number: int, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    regions = {name: torch.empty(size, dtype=torch.uint8, device="cpu") for name, size in sizes.items()}
    for place, row in _places(parts, number, regions):
        place.copy_(row)
    return regions


def _scatter(parts: Parts, number: int, regions: Mapping[str, torch.Tensor]) -> None:
    for place, row in _places(parts, number, regions):
        row.copy_(place)


def _places(parts: Parts, number: int, regions: Mapping[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For every layer's part: its bytes within its region, and its row of the pool."""
    at = dict.fromkeys(regions, 0)
    places = []
    for region, tensor in parts:
        row = tensor[number]
        places.append((regions[region][at[region] : at[region] + row.numel()], row))
        at[region] += row.numel()
    return places
