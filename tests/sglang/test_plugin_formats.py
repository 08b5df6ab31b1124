"""Index pages of another format are a miss in storage, and so is a truncated page, by SGLang's own storage code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

import engine_context
import plugin_world
from dsv4_serve.engines.sglang import index_format, routes
from format_world import (
    FP4,
    INDEXER,
    SCALE,
    SIZES,
    Store,
    fused,
    hooked,
    other_format,
    pool,
    publish,
    storage_config,
    tokens,
)
from index_world import index_pool

__all__ = ["hooked", "pool"]


# The fingerprint


def test_formats_of_equal_size_have_different_fingerprints() -> None:
    made = {
        "c4": tokens(c4=index_pool()),
        "v41": tokens(c1=index_pool()),
        "page8": tokens(c1=index_pool(page8=True)),
        "two": tokens(c1=index_pool(page8=True), c2=index_pool()),
        "cuda": tokens(c4=fused(True)),
        "fp8": tokens(c4=fused(False)),
    }
    found = {name: index_format.fingerprint(pool) for name, pool in made.items()}
    assert len(set(found.values())) == len(made)
    assert all(value is not None and len(value) == 16 for value in found.values())
    assert index_format.fingerprint(tokens()) is None
    assert index_format.describe(made["page8"])["c1"]["layout"] == "split8"
    assert index_format.describe(made["v41"])["c1"]["convention"]["name"] == "rne_v41"


def test_the_writer_of_c4_keys_is_part_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = tokens(c4=index_pool())
    by_aiter = index_format.fingerprint(ours)
    with plugin_world.aiter(), plugin_world.routed():
        by_reference = index_format.fingerprint(ours)
        assert index_format.writer().startswith("dsv4_kernels reference ")
    assert by_aiter != by_reference
    monkeypatch.setattr(routes, "aiter_version", lambda: "0.2.0")
    by_another_version = index_format.fingerprint(ours)
    assert by_another_version not in (by_aiter, by_reference)
    source = tmp_path / "aiter_meta" / "csrc" / "kernels"
    source.mkdir(parents=True)
    (tmp_path / "aiter_meta" / "__init__.py").touch()
    (source / "dsv4_rotate_quant.cu").write_text("store_offset = load_offset / 2;")
    monkeypatch.syspath_prepend(tmp_path)
    seen = set()
    for patch in ("store_offset = load_offset / 2;", "store_offset = col_offset / 2;"):
        (source / "dsv4_rotate_quant.cu").write_text(patch)
        index_format._aiter_source.cache_clear()
        seen.add(index_format.fingerprint(ours))
    index_format._aiter_source.cache_clear()
    assert len(seen | {by_another_version}) == 3


def test_upstream_serves_pages_of_another_format_as_keys(
    pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(pool, tmp_path).write()
    later = Store(other_format(pool, monkeypatch), tmp_path)
    assert later.hits() == {INDEXER: [True], SCALE: [True]}
    assert later.stored(1) == {77}


def test_ours_misses_them_and_finds_its_own(
    pool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hooked: None
) -> None:
    publish(pool)
    Store(pool, tmp_path).write()
    again = Store(pool, tmp_path)
    assert again.hits() == {INDEXER: [True], SCALE: [True]}
    publish(other_format(pool, monkeypatch))
    later = Store(pool, tmp_path)
    assert later.hits() == {INDEXER: [False], SCALE: [False]}
    assert later.storage.batch_exists_v2(["page"], later.transfers(1)).kv_hit_pages == 0
    assert later.stored(1) != {77}


def test_a_pool_tells_its_format_when_it_is_made(tmp_path: Path, hooked: None) -> None:
    model = engine_context.write_model(tmp_path)
    assert index_format.current() is None
    assert storage_config().model_name == "models/DeepSeek-V4-Flash"
    with engine_context.engine(model, *FP4, *SIZES) as arguments:
        made = engine_context.token_pool(arguments, 16384)
    found = index_format.fingerprint(made)
    assert index_format.current() == found
    config = storage_config()
    assert config.model_name == f"models/DeepSeek-V4-Flash-index-{found}"
    config.__post_init__()
    assert config.model_name == f"models/DeepSeek-V4-Flash-index-{found}"


def test_a_draft_with_an_index_of_its_own_joins_the_format(pool: Any, hooked: None) -> None:
    publish(pool)
    target = index_format.current()
    index_format._remember(lambda token_pool: None)(tokens())
    assert index_format.current() == target
    index_format._remember(lambda token_pool: None)(tokens(c1=index_pool()))
    both = index_format.current()
    assert both not in (target, None)
    index_format._remember(lambda token_pool: None)(pool)
    assert index_format.current() == both


def test_every_maker_of_a_storage_configuration_takes_it() -> None:
    """The hook sits where all of them pass, so that a new backend cannot forget it."""
    from sglang.srt.mem_cache.storage.mooncake_store import mooncake_direct_linker
    from sglang.srt.mem_cache.storage.umbp import umbp_direct_linker

    for module in (cache_controller, mooncake_direct_linker, umbp_direct_linker):
        assert module.HiCacheStorageConfig is HiCacheStorageConfig


# Truncated pages


def truncate(directory: Path) -> Path:
    (page,) = directory.glob(f"*.{SCALE}*.bin")
    page.write_bytes(page.read_bytes()[:-1])
    return page


def test_upstream_raises_at_a_truncated_page_for_ever(pool: Any, tmp_path: Path) -> None:
    Store(pool, tmp_path).write()
    page = truncate(tmp_path)
    for _ in range(2):
        store = Store(pool, tmp_path)
        with pytest.raises(OSError, match="Short read"):
            store.hits()
        store.write()
    assert page.is_file()


def test_ours_misses_a_truncated_page_once_and_writes_it_again(
    pool: Any, tmp_path: Path, hooked: None, caplog: pytest.LogCaptureFixture
) -> None:
    publish(pool)
    Store(pool, tmp_path).write()
    page = truncate(tmp_path)
    store = Store(pool, tmp_path)
    assert store.hits() == {INDEXER: [True], SCALE: [False]}
    assert f"{page} has" in caplog.text
    assert not page.is_file()
    store.write()
    assert store.hits() == {INDEXER: [True], SCALE: [True]}
    assert store.stored(1) == {77}
