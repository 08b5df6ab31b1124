"""Tokens and bytes by region, read from the pools that SGLang's unmodified code makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.mem_cache import memory_pool_host
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _dsv4_indexer_regions

import engine_context
from dsv4_serve.engines.sglang.inside import publisher
from dsv4_serve.engines.sglang.inside.regions import Region, device_regions, host_regions, merged

FP4 = "--enable-deepseek-v4-fp4-indexer"
SIZES = ("--max-total-tokens", "16384", "--max-running-requests", "4")
TOKENS = 16384
PAGES = 64 + 4
"""Index and C4 pages of 64 entries: SGLang reserves as many slots of them as a page has tokens."""


@pytest.fixture
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The token pool of two C4 layers and one C128 layer, with these flags."""
    flags = getattr(request, "param", (FP4,))
    model = engine_context.write_model(tmp_path, compress_ratios=[4, 128, 4])
    with engine_context.engine(model, *SIZES, *flags) as arguments:
        yield engine_context.token_pool(arguments, TOKENS)


def by_name(regions: list[Region]) -> dict[str, Region]:
    found = {region.name: region for region in regions}
    assert len(found) == len(regions)
    return found


def test_each_region_has_the_tokens_and_bytes_of_its_tensors(pool: Any) -> None:
    found = by_name(device_regions(pool))
    assert set(found) == {"main", "window", "c4", "c128", "index_payload", "index_scale", "state"}
    # A C4 page of 64 entries of 584 B is padded to 65 times 576 B.
    assert (found["c4"].tokens, found["c4"].layers) == (TOKENS // 4, 2)
    assert found["c4"].bytes == 2 * PAGES * 65 * 576
    assert found["c128"].tokens == TOKENS // 128
    assert found["main"].tokens == TOKENS
    assert found["main"].bytes == found["c4"].bytes + found["c128"].bytes
    assert found["window"].layers == 3
    assert found["state"].layers == 5


def test_index_keys_cost_68_bytes_in_two_regions(pool: Any) -> None:
    found = by_name(device_regions(pool))
    payload, scale = found["index_payload"], found["index_scale"]
    assert payload.tokens == scale.tokens == TOKENS // 4
    assert payload.bytes == 2 * PAGES * 64 * 64
    assert scale.bytes == 2 * PAGES * 64 * 4
    # The reserved pages cost something too.
    assert payload.bytes_per_token == pytest.approx(64 * PAGES / 64)
    assert scale.bytes_per_token == pytest.approx(4 * PAGES / 64)


@pytest.mark.parametrize("pool", [()], indirect=True)
def test_fp8_keys_and_their_scales_are_one_region_of_132_bytes(pool: Any) -> None:
    found = by_name(device_regions(pool))
    assert "index_scale" not in found
    assert found["index_payload"].bytes == 2 * PAGES * 64 * 132


@pytest.mark.parametrize(
    ("pool", "labels"),
    [((FP4,), ("split64", "fp4", "aiter")), ((), ("fp8", "fp8", "aiter"))],
    indirect=["pool"],
)
def test_the_format_of_the_index_has_a_name(pool: Any, labels: tuple[str, str, str]) -> None:
    layout, kind, convention = labels
    assert publisher.formats(pool) == [{"layout": layout, "format": kind, "convention": convention}]


def test_host_pools_have_the_same_regions_in_entries_not_tokens(pool: Any) -> None:
    entries = [
        SimpleNamespace(
            name=region.name,
            host_pool=memory_pool_host.DeepSeekV4PagedHostPool(
                region.name.value,
                region.device_buffers,
                region.item_bytes,
                num_host_pages=8,
                slot_page_size=region.slot_page_size,
                pin_memory=False,
                page_aligned_only=region.page_aligned_only,
            ),
        )
        for region in _dsv4_indexer_regions(pool, 256)
    ]
    entries.append(SimpleNamespace(name="kv", host_pool=SimpleNamespace(size=2048)))
    found = by_name(host_regions(entries))
    assert found["index_payload"] == Region("index_payload", 8 * 64, 2 * 8 * 64 * 64, 2, "host")
    assert found["index_scale"] == Region("index_scale", 8 * 64, 2 * 8 * 64 * 4, 2, "host")
    assert set(found) == {"index_payload", "index_scale"}


def test_the_indexes_of_two_ratios_are_one_region() -> None:
    both = merged([Region("index_payload", 100, 640_000, 10), Region("index_payload", 200, 1_280_000, 10)])
    assert both == Region("index_payload", 150, 1_920_000, 20)
    assert both.bytes_per_token == 640
