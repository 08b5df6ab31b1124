"""Capacities and bytes of the pools against hand computations, and the free lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsv4_serve.engines.embedded.config import load_model_config
from dsv4_serve.engines.embedded.free_list import FreeList
from dsv4_serve.engines.embedded.options import EngineOptions, OptionError
from dsv4_serve.engines.embedded.v4_pools import V4Pools

CONTEXT = 4096
C4_PAGE = 37_440
"""64 rows of 584 B, padded to a multiple of 576."""
C128_PAGE = 1_728


def pools(directory: Path, **options: Any) -> V4Pools:
    chosen = EngineOptions(model_path=directory, served_model_name="tiny", **options)
    return V4Pools(load_model_config(directory), chosen, CONTEXT)


def test_regions_of_production_geometry(tiny_dir: Path) -> None:
    """Ratios 0, 4, 128, 4: two C4 layers and one C128 layer; 10,240 tokens are 40 pages."""
    made = pools(tiny_dir, max_total_tokens=10_300, cached_tails=5)
    regions = {r.name: (r.tokens, r.bytes, r.bytes_per_token) for r in made.regions()}
    assert made.capacity_tokens == 10_240
    assert regions == {
        "main": (10_240, 40 * (2 * C4_PAGE + C128_PAGE), (2 * C4_PAGE + C128_PAGE) / 256),
        "c4": (2_560, 40 * 2 * C4_PAGE, 585.0),
        "c128": (80, 40 * C128_PAGE, 864.0),
        "index_payload": (2_560, 2 * 2_560 * 64, 64.0),
        "index_scale": (2_560, 2 * 2_560 * 4, 4.0),
        "window": (640, 4 * 5 * 74_880, 585.0),
        "state": (20, 5 * 2 * 4 * 2 * (512 + 128) * 4, 4 * 2 * (512 + 128)),
    }


@pytest.mark.parametrize(("dtype", "each"), [("fp4", 68.0), ("fp8", 132.0), ("bf16", 256.0), ("float32", 512.0)])
def test_index_bytes_of_a_compressed_token(tiny_dir: Path, dtype: str, each: float) -> None:
    made = pools(tiny_dir, indexer_dtype=dtype, max_total_tokens=2048)
    assert made.index_bytes_per_token() == each
    index = [r for r in made.regions() if r.name.startswith("index")]
    assert sum(r.bytes_per_token for r in index) == each


@pytest.mark.parametrize(("dtype", "index"), [("fp4", 68), ("fp8", 132)])
def test_a_byte_budget_buys_whole_pages(tiny_dir: Path, dtype: str, index: int) -> None:
    page = 2 * (C4_PAGE + 64 * index) + C128_PAGE
    made = pools(tiny_dir, indexer_dtype=dtype, kv_bytes=1_000_000)
    assert made.page_bytes == page
    assert made.capacity_tokens == 1_000_000 // page * 256


def test_less_than_a_page_is_refused(tiny_dir: Path) -> None:
    with pytest.raises(OptionError, match=r"kv_bytes=100: accepted is 85312 \(one page\) or more"):
        pools(tiny_dir, kv_bytes=100)


def test_used_tokens_follow_pages_and_tails(tiny_dir: Path) -> None:
    made = pools(tiny_dir, max_total_tokens=2048)
    made.pages.take()
    made.pages.take()
    made.tails.take()
    used = made.used_tokens()
    assert (used["main"], used["index_scale"], used["c128"], used["window"], used["state"]) == (512, 128, 4, 128, 4)


def test_free_list_hands_out_each_number_once() -> None:
    free = FreeList("page", 3)
    taken = [free.take() for _ in range(4)]
    assert taken == [1, 2, 3, None]
    free.give(2)
    assert (free.free, free.used, free.outstanding()) == (1, 2, frozenset({1, 3}))
    with pytest.raises(RuntimeError, match="page 2 was given back but is not out"):
        free.give(2)


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("indexer_dtype", "int4", "fp4, fp8, bf16 or float32"),
        ("kv_dtype", "fp8", "v4, v41, bf16 or float32"),
        ("max_total_tokens", 255, "256 (one page) or more"),
        ("chunk_tokens", 60, "a positive multiple of 8"),
        ("max_running_requests", 0, "a positive integer"),
        ("max_queued_requests", -1, "0 or a positive integer"),
        ("threads", -2, "0 (automatic) or a positive integer"),
    ],
)
def test_wrong_options_name_value_and_accepted(option: str, value: Any, accepted: str) -> None:
    with pytest.raises(OptionError) as error:
        EngineOptions(model_path=Path("m"), served_model_name="m", **{option: value})
    assert str(error.value) == f"{option}={value!r}: accepted is {accepted}"
