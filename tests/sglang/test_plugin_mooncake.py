"""Mooncake's keys, through a host pool and through a direct linker, name both index regions and their format."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.mem_cache.hicache_storage import PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _dsv4_indexer_regions
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import resolve_hybrid_device_pool_group
from sglang.srt.mem_cache.storage.mooncake_store import mooncake_store
from sglang.srt.mem_cache.unified_cache.components import ComponentType

from dsv4_serve.engines.sglang import index_format
from format_world import INDEXER, SCALE, TREE_PAGE, hooked, other_format, pool, publish, storage_config

__all__ = ["hooked", "pool"]


class Shelf:
    """Mooncake's store as its client library offers it, in this process's memory."""

    objects: dict[str, bytes]

    def __init__(self) -> None:
        self.objects = {}

    def setup(self, *arguments: Any, **named: Any) -> int:
        return 0

    def put(self, key: str, value: bytes) -> int:
        self.objects[key] = value
        return 0

    def is_exist(self, key: str) -> int:
        return int(key in self.objects)

    def get(self, key: str) -> bytes:
        return self.objects[key]

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return [self.is_exist(key) for key in keys]


def mooncake(monkeypatch: pytest.MonkeyPatch, shelf: Shelf, regions: Any) -> Any:
    """SGLang's Mooncake backend over that store."""
    of = mooncake_store.MooncakeStore
    monkeypatch.setattr(of, "_import_mooncake_store", lambda self: lambda: shelf)
    monkeypatch.setattr(of, "_import_mooncake_group_semantics", lambda self: (None, False))
    monkeypatch.setenv("MOONCAKE_MASTER", "127.0.0.1:50051")
    made = of(storage_config())
    made.registered_pools = dict.fromkeys((region.name for region in regions), SimpleNamespace())
    return made


def test_mooncakes_keys_name_both_regions_and_the_format(
    pool: Any, monkeypatch: pytest.MonkeyPatch, hooked: None
) -> None:
    regions, shelf = _dsv4_indexer_regions(pool, TREE_PAGE), Shelf()
    keys = []
    for changed in (False, True):
        publish(other_format(pool, monkeypatch) if changed else pool)
        store = mooncake(monkeypatch, shelf, regions)
        names = [PoolTransfer(name=name, keys=["page"]) for name in (INDEXER, SCALE)]
        made = [store._tag_keys(store._get_hybrid_page_component_keys(["page"], t)[0]) for t in names]
        payload, scale = (key for part in made for key in part)
        assert payload.endswith("page__deepseek_v4_c4_indexer")
        assert scale.endswith("page__deepseek_v4_c4_indexer_scale")
        assert all(f"-index-{index_format.current()}_" in key for key in (payload, scale))
        keys += [payload, scale]
    assert len(set(keys)) == 4


def test_the_external_linkers_pool_group_names_both_regions(
    pool: Any, monkeypatch: pytest.MonkeyPatch, hooked: None
) -> None:
    """A direct linker stores device pages without a host pool between, each region under a key of its own."""
    none = SimpleNamespace(mtp_draft_device_pools=(), sidecar_draft_device_pools=())
    group = resolve_hybrid_device_pool_group(
        kvcache=pool, page_size=TREE_PAGE, params=none, components={ComponentType.FULL, ComponentType.SWA}
    )
    rows = {name: group.entry_map[name].components[0][0].shape[1] for name in (INDEXER, SCALE)}
    assert rows == {INDEXER: 64 * 64, SCALE: 64 * 4}
    publish(pool)
    store = mooncake(monkeypatch, Shelf(), ())
    store.registered_pools = group.entry_map
    names = [PoolTransfer(name=name, keys=["page"]) for name in (INDEXER, SCALE)]
    keys = [store._tag_keys(store._get_hybrid_page_component_keys(["page"], t)[0]) for t in names]
    prefix = f"models-DeepSeek-V4-Flash-index-{index_format.current()}_page__deepseek_v4_c4_indexer"
    assert keys == [[prefix], [f"{prefix}_scale"]]
