"""The host tier: page groups in host memory, allocated once; page-locked where the pools are on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .ledger import Entry, Ledger
from .page_group import TAIL_REGIONS, PageCopier, PageGroup


class HostTier:
    """A fixed number of places, each with room for every region of a group. Used by the engine's thread only.

    `on_eviction` is given a group before its place is taken; its regions are views that live no longer than the call.
    """

    name = "host"

    def __init__(self, groups: int, copier: PageCopier, pinned: bool, on_eviction: Callable[[PageGroup], None]) -> None:
        self._group_bytes, self._on_eviction = copier.bytes, on_eviction
        self._regions = {
            name: torch.zeros(groups, size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
            for name, size in copier.sizes.items()
        }
        self.ledger = Ledger(groups)
        self._free = list(range(groups))
        self._place: dict[bytes, int] = {}
        self._tokens: dict[bytes, tuple[int, ...]] = {}

    def put(self, group: PageGroup) -> bool:
        """Keep a copy; False when it is kept already. One with a tail replaces one without."""
        known = self.ledger.get(group.prefix)
        if known is not None and (known.has_tail or not group.has_tail):
            self.ledger.touch([group.prefix])
            return False
        if known is None:
            self._make_room()
            self._place[group.prefix] = self._free.pop()
        place = self._place[group.prefix]
        for name, source in group.regions.items():
            self._regions[name][place].copy_(source)
        self._tokens[group.prefix] = group.tokens
        self.ledger.add(Entry(group.prefix, group.parent, self._group_bytes, group.has_tail))
        return True

    def get(self, prefix: bytes) -> PageGroup | None:
        """The group of that prefix; its regions are views that the next `put` may overwrite."""
        entry = self.ledger.get(prefix)
        if entry is None:
            return None
        self.ledger.touch([prefix])
        return self._view(entry)

    def discard(self, prefix: bytes) -> None:
        """Forget a group, if it is here."""
        if self.ledger.remove(prefix) is not None:
            self._free.append(self._place.pop(prefix))
            del self._tokens[prefix]

    def groups_kept(self) -> list[PageGroup]:
        """Every group as views, least recently used first."""
        return [self._view(entry) for entry in self.ledger.entries()]

    def _view(self, entry: Entry) -> PageGroup:
        place = self._place[entry.prefix]
        names = [name for name in self._regions if entry.has_tail or name not in TAIL_REGIONS]
        regions = {name: self._regions[name][place] for name in names}
        return PageGroup(entry.prefix, entry.parent, self._tokens[entry.prefix], regions)

    def _make_room(self) -> None:
        while (victim := self.ledger.victim()) is not None:
            self._on_eviction(self._view(victim))
            self.discard(victim.prefix)
