"""A file of the disk tier: it gives back what it was given, and nothing that was changed, cut or is another's."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from dsv4_serve.engines.embedded.tiers.page_file import HEADER_ROOM, MAGIC, PageRefusedError, decode, encode
from embedded.disk_tier_harness import FOREIGN, OURS, SIZES, chain, same


@pytest.mark.parametrize("tail", [True, False])
def test_a_page_file_gives_back_what_it_was_given(tail: bool) -> None:
    (group,) = chain(1, tail=tail)
    data = encode(group, OURS)
    assert len(data) - sum(region.numel() for region in group.regions.values()) < HEADER_ROOM
    assert same(decode(data, group.prefix, OURS, SIZES), group)
    assert group.has_tail is tail


def test_no_byte_of_a_page_file_can_change_unnoticed() -> None:
    (group,) = chain(1)
    data = encode(group, OURS)
    for at in [*range(0, len(data), 37), len(data) - 1]:
        spoiled = bytearray(data)
        spoiled[at] ^= 1
        with pytest.raises(PageRefusedError) as refusal:
            decode(bytes(spoiled), group.prefix, OURS, SIZES)
        assert refusal.value.reason in ("corrupt", "truncated")


def test_no_cut_of_a_page_file_goes_unnoticed() -> None:
    (group,) = chain(1)
    data = encode(group, OURS)
    for length in [*range(0, len(data), 53), len(data) - 1]:
        with pytest.raises(PageRefusedError) as refusal:
            decode(data[:length], group.prefix, OURS, SIZES)
        assert refusal.value.reason == "truncated"
    with pytest.raises(PageRefusedError, match="its regions end at"):
        decode(data + b"x", group.prefix, OURS, SIZES)


def test_a_group_without_one_of_its_regions_is_refused() -> None:
    """The scales travel with the payload, or neither does."""
    (group,) = chain(1)
    without = {name: region for name, region in group.regions.items() if name != "index_scale"}
    data = encode(replace(group, regions=without), OURS)
    with pytest.raises(PageRefusedError, match="its regions are") as refusal:
        decode(data, group.prefix, OURS, SIZES)
    assert refusal.value.reason == "truncated"


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b"\xff",
        b'{"fingerprint": "%s", "prefix": "%s"}',
        b'{"fingerprint": "%s", "prefix": "%s", "parent": "zz", "tokens": [], "regions": []}',
        b'{"fingerprint": "%s", "prefix": "%s", "parent": "", "tokens": 1, "regions": []}',
        b'{"fingerprint": "%s", "prefix": "%s", "parent": "", "tokens": [], "regions": [["c4", "all"]]}',
    ],
)
def test_a_header_that_somebody_else_wrote_is_corrupt(header: bytes) -> None:
    """Its checksum is right: nothing but its fields tells."""
    (group,) = chain(1)
    if b"%s" in header:
        header %= (OURS.encode(), group.prefix.hex().encode())
    data = MAGIC + len(header).to_bytes(4, "little") + header + hashlib.sha256(header).digest()
    with pytest.raises(PageRefusedError) as refusal:
        decode(data, group.prefix, OURS, SIZES)
    assert refusal.value.reason == "corrupt"


def test_the_page_of_another_format_or_prefix_is_foreign() -> None:
    group, other = chain(2)
    for data, prefix in ((encode(group, FOREIGN), group.prefix), (encode(group, OURS), other.prefix)):
        with pytest.raises(PageRefusedError) as refusal:
            decode(data, prefix, OURS, SIZES)
        assert refusal.value.reason == "foreign"
