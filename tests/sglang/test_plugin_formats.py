"""Index pages of another format: a miss in storage and a refused peer, by SGLang's own storage and handshake code."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer, CommonKVManager
from sglang.srt.disaggregation.utils import get_pd_kv_layout
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache import memory_pool_host
from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig, PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _dsv4_indexer_regions
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import resolve_hybrid_device_pool_group
from sglang.srt.mem_cache.storage.mooncake_store import mooncake_store
from sglang.srt.mem_cache.unified_cache.components import ComponentType

import engine_context
import plugin_world
from dsv4_serve.engines.sglang import index_format, routes
from index_world import index_pool

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


# HiCache's storage


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


# The handshake of prefill and decode servers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """SGLang's bootstrap server on loopback."""
    port = free_port()
    server = CommonKVBootstrapServer("127.0.0.1", port)
    address = f"127.0.0.1:{port}"
    for _ in range(400):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield address
    for task in list(server._background_tasks):
        server._loop.call_soon_threadsafe(task.cancel)
    server.close()


def register(address: str, layout: str) -> None:
    """A prefill server with this layout announces itself."""
    sizes = dict.fromkeys(("attn_tp_size", "attn_cp_size", "attn_dp_size", "pp_size", "system_dp_size"), 1)
    ranks = dict.fromkeys(("attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "pp_rank", "system_dp_rank"), 0)
    place = {"rank_ip": "127.0.0.1", "rank_port": 1, "page_size": 256}
    row = sizes | ranks | place | {"kv_cache_dtype": "fp8_e4m3", "kv_layout": layout}
    CommonKVManager._register_topology_row(SimpleNamespace(), f"http://{address}/route", row)


def meet(address: str, layout: str) -> bool:
    """Whether a decode server with this layout takes the prefill server that is announced at `address`."""
    decode: Any = object.__new__(CommonKVManager)
    vars(decode).update(
        prefill_info_table={},
        kv_args=SimpleNamespace(page_size=256, state_types=(), engine_rank=0, pp_rank=0),
        kv_cache_dtype_str="fp8_e4m3",
        kv_layout=layout,
        dsv41_spec_layout=None,
        attn_tp_size=1,
        attn_cp_size=1,
        attn_cp_rank=0,
        pp_size=1,
        pp_rank=0,
        is_mla_backend=True,
        is_hybrid_mla_backend=False,
        dcp_size=1,
        enable_all_cp_ranks_for_transfer=False,
    )
    return bool(decode.try_ensure_parallel_info(address))


def test_upstreams_handshake_does_not_see_the_index_format(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = get_pd_kv_layout(pool)
    assert get_pd_kv_layout(other_format(pool, monkeypatch)) == before == "v4,c4:v4,c128:v4"


def test_ours_refuses_a_peer_of_another_index_format(
    pool: Any, monkeypatch: pytest.MonkeyPatch, hooked: None, bootstrap: str
) -> None:
    prefill = get_pd_kv_layout(pool)
    assert prefill == f"v4,c4:v4,c128:v4,index:{index_format.fingerprint(pool)}"
    register(bootstrap, prefill)
    assert meet(bootstrap, prefill)
    for layout in (get_pd_kv_layout(other_format(pool, monkeypatch)), "v4,c4:v4,c128:v4"):
        with pytest.raises(RuntimeError, match=r"KV layout mismatch: prefill server has kv_layout=v4.*index:"):
            meet(bootstrap, layout)
