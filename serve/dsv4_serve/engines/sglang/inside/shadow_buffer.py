"""Index keys as they were before they became FP4, of a few requests and one layer, in a side buffer of fixed size."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RATIO = 4
"""Tokens of a compressed key."""
HEAD_DIM = 128


class ShadowBuffer:
    """`places` requests of up to `keys` bfloat16 keys each, and which of them a pool's slot belongs to.

    Nothing here waits for the device. A slot that belongs to no sampled request writes to a row that nobody reads.
    """

    def __init__(self, places: int, keys: int, slots: int, device: torch.device | str) -> None:
        import torch

        self.places, self.keys_each = places, keys
        self._nowhere = places * keys
        self._keys = torch.zeros(self._nowhere + 1, HEAD_DIM, dtype=torch.bfloat16, device=device)
        self._row_of_slot = torch.full((slots,), self._nowhere, dtype=torch.int32, device=device)
        self._free = list(range(places))

    @property
    def bytes(self) -> int:
        """Bytes of the buffer and of its map of slots, allocated once."""
        return sum(t.numel() * t.element_size() for t in (self._keys, self._row_of_slot))

    @property
    def places_free(self) -> int:
        return len(self._free)

    def take(self) -> int | None:
        """A place for a request, None if all are taken."""
        return self._free.pop() if self._free else None

    def give_back(self, place: int, slots: Tensor | None) -> None:
        """Free a place; the `slots` int64 [n] of its request belong to nobody from now on."""
        if place in self._free:
            raise ValueError(f"place {place} is free already")
        if slots is not None:
            self._row_of_slot[slots] = self._nowhere
        self._free.append(place)

    def own(self, place: int, first_key: int, slots: Tensor) -> None:
        """Keys `first_key`.. of the request at `place` will be written to `slots` int64 [n]."""
        import torch

        if first_key + len(slots) > self.keys_each:
            raise ValueError(f"{first_key + len(slots)} keys: a place holds {self.keys_each}")
        start = place * self.keys_each + first_key
        rows = torch.arange(start, start + len(slots), dtype=torch.int32, device=slots.device)
        self._row_of_slot[slots] = rows

    def write(self, keys: Tensor, slots: Tensor) -> None:
        """Keep those of `keys` [n, 128] whose `slots` int64 [n] are owned; -1 is a row without a slot."""
        import torch

        rows = torch.where(slots >= 0, self._row_of_slot[slots.clamp(min=0)], self._nowhere)
        self._keys[rows.long()] = keys.to(self._keys.dtype)

    def keys(self, place: int, count: int) -> Tensor:
        """bfloat16 [count, 128]: the first keys of the request at `place`."""
        start = place * self.keys_each
        return self._keys[start : start + count]
