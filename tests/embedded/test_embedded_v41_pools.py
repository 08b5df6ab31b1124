"""What a V4.1 model caches, against hand computations: sources own pages, everything else shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsv4_serve.engines.embedded.families import load_config
from dsv4_serve.engines.embedded.model_formats import V41_FORMATS
from dsv4_serve.engines.embedded.options import EngineOptions, OptionError
from dsv4_serve.engines.embedded.tiers.fingerprint import tier_fingerprint
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.engines.embedded.v41.config import V41Config
from dsv4_serve.engines.embedded.v41.pools import V41Pools

CONTEXT = 4096
C1_PAGE, C2_PAGE = 73_728, 36_864
"""256 and 128 rows of 288 B, multiples of 256 B."""
WINDOW = 128 * 528


def pools(directory: Path, **options: Any) -> V41Pools:
    _, config = load_config(directory)
    assert isinstance(config, V41Config)
    return V41Pools(config, EngineOptions(directory, "tiny", **options), CONTEXT)


@pytest.mark.parametrize("page8", [False, True])
def test_regions_of_published_geometry(tiny_v41_dir: Path, page8: bool) -> None:
    """One C2 and one C1 source in six layers: per page 128 and 256 entries, and as many keys of 68 B."""
    made = pools(tiny_v41_dir, max_total_tokens=10_300, cached_tails=5, page8=page8)
    regions = {r.name: (r.tokens, r.bytes, r.bytes_per_token) for r in made.regions()}
    assert made.capacity_tokens == 10_240
    assert made.page_bytes == C1_PAGE + C2_PAGE + 384 * 68
    assert regions == {
        "main": (10_240, 40 * (C1_PAGE + C2_PAGE), (C1_PAGE + C2_PAGE) / 256),
        "c1": (10_240, 40 * C1_PAGE, 288.0),
        "c2": (5_120, 40 * C2_PAGE, 288.0),
        "index_payload": (15_360, 15_360 * 64, 64.0),
        "index_scale": (15_360, 15_360 * 4, 4.0),
        "window": (640, 6 * 5 * WINDOW, 528.0),
    }
    assert made.index_bytes_per_token() == 68.0


def test_only_sources_own_pages_and_only_windows_make_tails(tiny_v41_dir: Path) -> None:
    made = pools(tiny_v41_dir, max_total_tokens=2048, page8=True)
    assert (list(made.entries), list(made.index)) == ([1, 3], [1, 3])
    assert [pool.page_rows for pool in made.entries.values()] == [128, 256]
    assert [pool.spec.layout.name for pool in made.index.values()] == ["split64", "split8"]
    assert [pool.tokens for pool in made.index.values()] == [9 * 128, 9 * 256]
    parts = [(region, tuple(tensor.shape)) for region, tensor in made.page_parts()]
    assert parts == [
        ("c2", (9, C2_PAGE)),
        ("c1", (9, C1_PAGE)),
        ("index_payload", (9, 128 * 64)),
        ("index_scale", (9, 128 * 4)),
        ("index_payload", (9, 256 * 64)),
        ("index_scale", (9, 256 * 4)),
    ]
    assert [(region, tensor.shape[1]) for region, tensor in made.tail_parts()] == [("window", WINDOW)] * 6


def test_the_parts_are_views_of_what_the_operations_write(tiny_v41_dir: Path) -> None:
    """A copy of the parts is a copy of the page: a byte that is written through a pool appears in its part."""
    made = pools(tiny_v41_dir, max_total_tokens=512, page8=True)
    parts = [tensor for _, tensor in made.page_parts()]
    tensors = [made.entries[1].pages, made.entries[3].pages]
    for pool in made.index.values():
        tensors += [pool.payload, pool.scale]
    for part, tensor in zip(parts, tensors, strict=True):
        tensor.view(-1)[-1] = 7
        assert part[-1, -1] == 7


@pytest.mark.parametrize(("dtype", "each"), [("fp8", 132.0), ("bf16", 256.0), ("float32", 512.0)])
def test_other_key_formats_are_there_to_measure(tiny_v41_dir: Path, dtype: str, each: float) -> None:
    made = pools(tiny_v41_dir, indexer_dtype=dtype, max_total_tokens=2048)
    assert made.index_bytes_per_token() == each


def test_pages_of_8_need_keys_of_ratio_1(tmp_path: Path) -> None:
    ratios = {"compress_ratios": [0, 2, 2, 2, 2, 2], "kv_source_layer_ids": [1], "index_source_layer_ids": [1, 3, 5]}
    write_tiny_model(tmp_path, overrides=ratios, family="v41")
    assert [pool.spec.layout.name for pool in pools(tmp_path, max_total_tokens=512).index.values()] == ["split64"]
    with pytest.raises(OptionError, match="page8=True: accepted is False for this model"):
        pools(tmp_path, max_total_tokens=512, page8=True)


def test_used_tokens_follow_pages_and_tails(tiny_v41_dir: Path) -> None:
    made = pools(tiny_v41_dir, max_total_tokens=2048)
    made.pages.take()
    made.pages.take()
    made.tails.take()
    assert made.used_tokens() == {
        "main": 512,
        "c1": 512,
        "c2": 256,
        "index_payload": 768,
        "index_scale": 768,
        "window": 128,
    }


def test_pages_on_the_disk_are_foreign_to_another_arrangement_of_keys(tiny_v41_dir: Path) -> None:
    """Pages of 64 keys and pages of 8 are of one size, and mean different keys."""
    prints = set()
    for page8 in (False, True):
        options = V41_FORMATS.settle(EngineOptions(tiny_v41_dir, "tiny", max_total_tokens=512, page8=page8))
        made = pools(tiny_v41_dir, max_total_tokens=512, page8=page8)
        _, config = load_config(tiny_v41_dir)
        assert sum(tensor.shape[1] for _, tensor in made.page_parts()) == made.page_bytes
        prints.add(tier_fingerprint(options, config, CONTEXT, made))
    assert len(prints) == 2
