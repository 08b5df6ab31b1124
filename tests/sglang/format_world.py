"""Token pools of several index formats, SGLang's file storage under them, and what a new process would publish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache import memory_pool_host
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _dsv4_indexer_regions

import engine_context
import plugin_world
from dsv4_serve.engines.sglang import index_format

FP4 = ("--enable-deepseek-v4-fp4-indexer",)
SIZES = ("--max-total-tokens", "16384", "--max-running-requests", "4")
TREE_PAGE = 256
INDEXER, SCALE = PoolName.DEEPSEEK_V4_C4_INDEXER, PoolName.DEEPSEEK_V4_C4_INDEXER_SCALE


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(index_format, "_seen", set())
    with plugin_world.hooks():
        yield


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A token pool with one C4 layer, made by unmodified SGLang."""
    model = engine_context.write_model(tmp_path_factory.mktemp("model"))
    with engine_context.engine(model, *FP4, *SIZES) as arguments:
        yield engine_context.token_pool(arguments, 16384)


def tokens(**pools: Any) -> Any:
    """As much of a token pool as a format follows from."""
    return SimpleNamespace(index_pools={int(name[1:]): made for name, made in pools.items()})


def fused(fp4: bool) -> Any:
    return SimpleNamespace(use_fp4_indexer=fp4, uses_aiter_fp4_layout=False, index_k_page8=False)


def storage_config(rank: int = 0) -> HiCacheStorageConfig:
    """As SGLang's cache controller and its direct linkers make it."""
    return HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=True,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="models/DeepSeek-V4-Flash",
    )


class Store:
    """SGLang's file storage under the index regions of a pool, as one server process has it."""

    def __init__(self, pool: Any, directory: Path) -> None:
        self.storage = HiCacheFile(storage_config(), str(directory))
        self.storage.registered_pools = {}
        for region in _dsv4_indexer_regions(pool, TREE_PAGE):
            self.storage.registered_pools[region.name] = memory_pool_host.DeepSeekV4PagedHostPool(
                region.name.value,
                region.device_buffers,
                region.item_bytes,
                num_host_pages=4,
                slot_page_size=region.slot_page_size,
                layout="page_first",
                pin_memory=False,
                page_aligned_only=region.page_aligned_only,
            )

    def transfers(self, page: int, key: str = "page") -> list[PoolTransfer]:
        indices = torch.arange(page * TREE_PAGE, (page + 1) * TREE_PAGE)
        return [PoolTransfer(name=name, host_indices=indices, keys=[key]) for name in (INDEXER, SCALE)]

    def fill(self, page: int, value: int) -> None:
        for host in self.storage.registered_pools.values():
            blank = host.get_dummy_flat_data_page()
            host.set_from_flat_data_page(page * TREE_PAGE, torch.full_like(blank, value))

    def stored(self, page: int) -> set[int]:
        pages = [host.get_data_page(page * TREE_PAGE) for host in self.storage.registered_pools.values()]
        return {int(v) for page_ in pages for v in page_.unique().tolist()}

    def write(self) -> None:
        self.fill(0, 77)
        assert self.storage.batch_set_v2(self.transfers(0)) == {INDEXER: [True], SCALE: [True]}

    def hits(self) -> dict[str, list[bool]]:
        found: dict[str, list[bool]] = self.storage.batch_get_v2(self.transfers(1))
        return found


def other_format(pool: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same server after a switch to pages of 8 slots: equal sizes, other bytes."""
    monkeypatch.setattr(pool.c4_indexer_kv_pool, "index_k_page8", True)
    return pool


def publish(pool: Any) -> None:
    """What the hook on the token pool's constructor does in a new process."""
    index_format._seen.clear()
    index_format._remember(lambda token_pool: None)(pool)
