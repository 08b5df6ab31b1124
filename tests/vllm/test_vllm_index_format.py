"""The format of index keys in what vLLM finds pages by: block hashes, all that follows from them, NIXL handshakes."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import KeyMetadata, PoolKey
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata as nixl
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.kv_offload.file_mapper import FileMapper

import vllm_index_world as world
from dsv4_serve.engines.hooks import HookError
from dsv4_serve.engines.vllm import index_format, routes

V4 = world.Model()
V41 = world.Model("deepseek_v41", heads=32, ratio=1, block=128)
FP8 = world.Model()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("DSV4_ALLOW_FALLBACK", "DSV4_BACKEND", "DSV4_INDEX_HADAMARD", "PYTHONHASHSEED"):
        monkeypatch.delenv(name, raising=False)
    with world.registered():
        yield
    kv_cache_utils.init_none_hash(get_hash_fn_by_name("sha256"))


class Core:
    """An engine core around its workers' answers; `_initialize_kv_caches` beneath the hook allocates on a device."""

    def __init__(self, *configs: Any) -> None:
        self.workers = [SimpleNamespace(vllm_config=config) for config in configs]

    def collective_rpc(self, method: Callable[[Any], Any]) -> list[Any]:
        return [method(worker) for worker in self.workers]


def started(*configs: Any) -> str | None:
    """The fingerprint that an engine of these workers has, with block hashes seeded as `EngineCore` seeds them."""
    routes.forget()
    index_format.forget()
    for config in configs:
        from vllm.v1.attention.backends.mla import indexer

        indexer.dsa_indexer_uses_fp4(config)
    hook = next(h for h in index_format.HOOKS if h.module == index_format.CORE)
    initialize = hook.wrap(mock.Mock(return_value="caches"))
    assert initialize(Core(*configs), configs[0]) == "caches"
    kv_cache_utils.init_none_hash(get_hash_fn_by_name("sha256"))
    return index_format.current()


def with_connectors(model: world.Model, dtype: str = "mxfp4", *names: str) -> Any:
    config = model.config(dtype)
    first = "MultiConnector" if len(names) > 1 else (names[0] if names else None)
    inside = [{"kv_connector": name} for name in names]
    config.kv_transfer_config = SimpleNamespace(
        kv_connector=first, kv_connector_extra_config={"connectors": inside} if len(names) > 1 else {}
    )
    return config


def keys() -> dict[str, str]:
    """What vLLM's own stores call the first block of one prompt."""
    block = kv_cache_utils.hash_block_tokens(get_hash_fn_by_name("sha256"), None, range(256))
    mapper = FileMapper("/kv", "V4", 256, 1, 8, 1, 1, 1, 0, "bfloat16")
    place = KeyMetadata("V4", 0, 0, 0, 0)
    return {
        "prefix cache": block.hex(),
        "offloading tier": make_offload_key(block, 0).hex(),
        "files": mapper.get_file_name(make_offload_key(block, 0)),
        "mooncake store": PoolKey.build_key_string(PoolKey.build_prefix(place), block.hex()),
        "P2P handshake": kv_cache_utils.get_none_hash_seed(),
    }


def test_the_hooks_stand_on_the_engine_s_own_functions() -> None:
    importlib.import_module(nixl.__name__)
    for hook in index_format.HOOKS:
        held = hook.owner(importlib.import_module(hook.module))
        assert getattr(getattr(held, hook.key), "__dsv4_hook__", None) == hook
    assert EngineCore._initialize_kv_caches.__wrapped__.__code__.co_varnames[:2] == ("self", "vllm_config")


def test_keys_of_two_formats_never_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    found["record68"] = started(with_connectors(V4)), keys()
    found["again"] = started(with_connectors(V4)), keys()
    found["record68_p128"] = started(with_connectors(V41)), keys()
    found["fp8"] = started(with_connectors(V4, "fp8")), keys()
    monkeypatch.setenv("DSV4_INDEX_HADAMARD", "1")
    found["rotated"] = started(with_connectors(V4)), keys()
    assert found.pop("again") == found["record68"]
    assert len({print_ for print_, _ in found.values()}) == 4
    for store in keys():
        assert len({of[store] for _, of in found.values()}) == 4


def test_an_engine_without_an_index_keeps_vllms_keys() -> None:
    config = with_connectors(world.Model("llama", heads=0))
    config.attention_config.indexer_kv_dtype = "auto"
    assert started(config) is None
    assert kv_cache_utils.get_none_hash_seed() == kv_cache_utils.DEFAULT_NONE_HASH_SEED


def test_a_shared_seed_of_the_operator_stays_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    told = started(with_connectors(V4))
    assert kv_cache_utils.get_none_hash_seed() == f"7-index-{told}"


def test_workers_that_store_differently_end_the_start() -> None:
    described: list[list[dict[str, object]]] = [[{"layout": "fp8"}], [{"layout": "record68"}]]
    with pytest.raises(HookError, match="workers store index keys in different formats: "):
        index_format.keep(described, [])


def test_another_writer_is_another_format(monkeypatch: pytest.MonkeyPatch) -> None:
    before = started(with_connectors(V4))
    monkeypatch.setattr("dsv4_kernels.fingerprint.backend_sources", lambda backend: "changed")
    assert started(with_connectors(V4)) != before


def compatibility(config: Any) -> str:
    """NIXL's own hash of a configuration that has what it reads."""
    config.model_config.model, config.model_config.dtype = "V4", "bfloat16"
    for name in ("get_total_num_kv_heads", "get_head_size", "get_total_num_hidden_layers"):
        setattr(config.model_config, name, lambda: 1)
    config.cache_config.cache_dtype = "fp8"
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    return str(nixl.compute_nixl_compatibility_hash(config, "FLASHMLA"))


def test_nixl_refuses_a_peer_of_another_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side computes it in its workers; the two are compared before pages are transferred."""
    found = []
    for model, dtype in ((V4, "mxfp4"), (V4, "mxfp4"), (V41, "mxfp4"), (V4, "fp8")):
        config = with_connectors(model, dtype)
        started(config)
        index_format.forget()  # a worker of another process than the engine's core
        found.append(compatibility(config))
    assert found[0] == found[1]
    assert len(set(found)) == 3


@pytest.mark.parametrize("name", sorted(index_format.OWN_KEYS))
def test_a_connector_that_nothing_reaches_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert name in KVConnectorFactory._registry
    with caplog.at_level(logging.WARNING):
        started(with_connectors(V4, "mxfp4", "OffloadingConnector", name))
    assert [r.message for r in caplog.records if "does not name the format" in r.message] == [
        f"connector {name} does not name the format of index keys ({index_format.current()}): peers must store the same"
    ]
