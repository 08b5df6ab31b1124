"""Where the keys of a launch lie, as compile-time numbers: what an entry of the page table names, and the strides of
`layout.py`. What is decorated runs inside the compiler.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon

from dsv4_kernels.layout import Layout

Order = tuple[int, ...]
"""entry, page: keys of a table's entry and of a page; slot, group, run, run_stride: of the payload; the rest is of the
scales. One flat tuple, because it is part of a kernel's name in the compiler's cache.
"""

BLOCK = 8
"""Keys of an entry where every lane has a page id of its own."""


def order_of(of: Layout, entry_slots: int) -> Order:
    """What kernels take that read `of` through a table whose entries name `entry_slots` keys."""
    p, s = of.payload, of.scale
    payload = p.slot_stride, p.group_stride, min(p.run, of.page_slots), p.run_stride
    scale = s.base, s.slot_stride, s.lane_stride, s.lanes, min(s.run, of.page_slots), s.run_stride
    return (entry_slots, of.page_slots, *payload, *scale)


@gluon.constexpr_function
def part(order: tuple[int, ...], name: str) -> int:
    """One number of an order."""
    names = "entry page slot group run run_stride"
    scales = "scale_base scale_slot scale_lane scale_lanes scale_run scale_run_stride"
    return order[f"{names} {scales}".split().index(name)]


@gluon.constexpr_function
def own_ids(order: tuple[int, ...]) -> bool:
    """Whether a lane finds its key by an entry of its own."""
    return order[0] == 8


@gluon.constexpr_function
def gathers(order: tuple[int, ...]) -> bool:
    """Whether an entry names a block inside a page."""
    return order[0] < order[1]


@gluon.constexpr_function
def two_halves(order: tuple[int, ...]) -> bool:
    """Whether an entry names twice the 64 keys that are scored at once."""
    return order[0] == 128


@gluon.constexpr_function
def word_scales(order: tuple[int, ...]) -> bool:
    """Whether the scales of a lane's four keys, one of each tile, are neighbours."""
    return order[0] == 64 and order[10:] == (16, 1)


@gluon.constexpr_function
def payload_of_slot(order: tuple[int, ...], slot: int) -> int:
    """First byte of a slot in its page."""
    return slot // order[4] * order[5] + slot % order[4] * order[2]


@gluon.constexpr_function
def scale_of_slot(order: tuple[int, ...], slot: int) -> int:
    """The scale of group 0 of a slot, from the first scale of its page."""
    return slot // order[10] * order[11] + slot % order[10] * order[7]
