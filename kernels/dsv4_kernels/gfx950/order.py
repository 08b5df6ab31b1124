"""Where the keys of a launch lie: their layout, and what an entry of the page table names. One compile-time value."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4_kernels.layout import Layout

BLOCK = 8
"""Keys of an entry where every lane has a page id of its own."""


@dataclass(frozen=True, slots=True)
class Order:
    """Keys of layout `of`, read through a table whose entries name `entry` keys each."""

    of: Layout
    entry: int

    @property
    def own_ids(self) -> bool:
        """Whether a lane finds its key by an entry of its own."""
        return self.entry == BLOCK

    @property
    def gathers(self) -> bool:
        """Whether an entry names a block inside a page."""
        return self.entry < self.of.page_slots

    @property
    def two_halves(self) -> bool:
        """Whether an entry names twice the 64 keys that are scored at once."""
        return self.entry == 128

    @property
    def word_scales(self) -> bool:
        """Whether the scales of a lane's four keys, one of each tile, are neighbours."""
        return self.entry == 64 and (self.of.scale_run, self.of.scale.run_stride) == (16, 1)

    def payload_of_slot(self, slot: int) -> int:
        """First byte of a slot in its page."""
        run, payload = self.of.payload_run, self.of.payload
        return slot // run * payload.run_stride + slot % run * payload.slot_stride

    def scale_of_slot(self, slot: int) -> int:
        """The scale of group 0 of a slot, from the first scale of its page."""
        run, scale = self.of.scale_run, self.of.scale
        return slot // run * scale.run_stride + slot % run * scale.slot_stride
