"""The plugin before a layer is built: its gates, its fallback, and who is asked to serve each operation."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.attention.backends.mla import indexer as gates
from vllm.v1.attention.ops import rocm_paged_mxfp4_indexer as rocm_ops

import vllm_index_world as world
from dsv4_kernels import counters
from dsv4_serve.engines.hooks import MARK, HookError
from dsv4_serve.engines.vllm import functions, launcher, plugin, routes, selection, tensors, writers
from dsv4_serve.engines.vllm.routing import HOOKS
from vllm import plugins

GROUP = "vllm.general_plugins"
V4 = world.Model()
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("DSV4_ALLOW_FALLBACK", "DSV4_BACKEND", "DSV4_INDEX_HADAMARD"):
        monkeypatch.delenv(name, raising=False)
    with world.registered():
        yield


def declared() -> str:
    """The entry point of the project's own metadata."""
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    return str(project["project"]["entry-points"][GROUP]["dsv4"])


def test_the_entry_point_is_declared_and_registers_once() -> None:
    assert declared() == f"{plugin.register.__module__}:{plugin.register.__name__}"
    before = plugin.hooks()
    plugin.register()
    assert plugin.hooks() is before
    assert {before.states()[hook.name] for hook in HOOKS if hook.needed} == {"attached"}
    before.verify(ready=True)


def test_vllm_finds_and_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "plugins_loaded", False)
    info = tmp_path / "dsv4_rocm-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dsv4-rocm\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\ndsv4 = {declared()}\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugin.unregister()
    assert not hasattr(gates.dsa_indexer_uses_fp4, MARK)
    plugins.load_general_plugins()
    assert hasattr(gates.dsa_indexer_uses_fp4, MARK)


def test_fp8_is_left_alone() -> None:
    for dtype in ("auto", "fp8"):
        assert not gates.dsa_indexer_uses_fp4(V4.config(dtype))
    assert routes.current() is None


REFUSED = [
    (V4.config(context_parallel=2), "context parallel size=2"),
    (world.Model("deepseek_v32").config(), "model_type=deepseek_v32"),
    (world.Model(heads=24).config(), "index_n_heads=24"),
]


@pytest.mark.parametrize(("config", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_mxfp4_that_cannot_be_ends_the_start(config: Any, told: str) -> None:
    with pytest.raises(HookError, match=f"engine 'vllm' cannot keep the index in FP4: {told}"):
        gates.dsa_indexer_uses_fp4(config)


def test_another_architecture_and_a_missing_aiter(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm._aiter_ops import rocm_aiter_ops

    with monkeypatch.context() as patch:
        patch.setattr(rocm_aiter_ops, "_AITER_ENABLED", False)
        with pytest.raises(HookError, match=r"dependency=.*VLLM_ROCM_USE_AITER=1"):
            gates.dsa_indexer_uses_fp4(V4.config())
    other = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: other)
    with pytest.raises(HookError, match="architecture=gfx942"):
        gates.dsa_indexer_uses_fp4(V4.config())


def test_a_permitted_fallback_makes_the_configuration_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_ALLOW_FALLBACK", "1")
    config = V4.config(context_parallel=2)
    before = counters.snapshot().fallbacks.get(("index_dtype", "context parallel size"), 0)
    assert not gates.dsa_indexer_uses_fp4(config)
    assert config.attention_config.indexer_kv_dtype == "fp8"
    assert not gates.dsa_indexer_uses_fp4(config)
    assert counters.snapshot().fallbacks["index_dtype", "context parallel size"] == before + 1


# Who serves


def chosen() -> dict[str, str]:
    return {op: route.backend for op, route in routes.choose(CPU, 64, 64).items()}


def as_aiter(monkeypatch: pytest.MonkeyPatch, of: functions.IndexFunctions, **names: Any) -> None:
    """AITER's module of `of`, with `names`."""
    module = ModuleType(of.module)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, of.module, module)


def launcher_names() -> dict[str, Any]:
    return {name: getattr(launcher, name) for name in functions.LAUNCHER_NAMES}


def test_without_aiters_functions_ours_serve_and_say_why() -> None:
    assert set(chosen().values()) == {"dsv4"}
    found = routes.current()
    assert found is not None
    assert "aiter: " in found["paged_logits"].reason


def test_an_aiter_that_answers_right_serves_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    as_aiter(monkeypatch, functions.SCORE, **launcher_names())
    as_aiter(monkeypatch, functions.SELECT, top_k_per_row_decode=selection.top_k_per_row_decode)
    assert chosen() == {
        "paged_logits": "aiter",
        "write_index_keys": "dsv4",
        "quantize_query": "dsv4",
        "topk": "aiter",
    }
    logits, out = torch.randn(2, 8), torch.empty(2, 4, dtype=torch.int32)
    with world.launched() as counts:
        rocm_ops._aiter_topk()(logits, 1, torch.full((2,), 8, dtype=torch.int32), out, 2, 8, 1, k=4)
    assert counts["topk", "decode", "aiter"] == 1


def test_an_aiter_that_lacks_one_name_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    names = launcher_names()
    del names["build_candidate_gather"]
    as_aiter(monkeypatch, functions.SCORE, **names)
    assert chosen()["paged_logits"] == "dsv4"
    assert rocm_ops._aiter() is launcher


def wrong_scores(*args: Any, **kwargs: Any) -> Any:
    return launcher.paged_mxfp4_mqa_logits(*args, **kwargs).mul_(1.0001)


def wrong_candidates(candidates: Any, *rest: Any) -> Any:
    """Every block but the first."""
    return launcher.build_candidate_gather(candidates.masked_fill(candidates == 0, -1), *rest)


def wrong_keys(k: Any, positions: Any, *rest: Any, **named: Any) -> None:
    writers.k_norm_rope_mxfp4_cache(k, positions * 0 + 3, *rest, **named)


def wrong_queries(*args: Any) -> Any:
    codes, scales, weights = writers.q_rope_mxfp4_quant(*args)
    return codes, scales.flip(1), weights


def wrong_selection(logits: Any, n: int, lengths: Any, out: Any, *rest: Any, k: int) -> None:
    """Right but for ties: the highest of equals."""
    out.copy_(logits.flip(1).topk(k).indices.mul(-1).add(logits.shape[1] - 1))


WRONG = [
    (functions.SCORE, {"paged_mxfp4_mqa_logits": wrong_scores}, "scores of row 0 differ"),
    (functions.SCORE, {"build_candidate_gather": wrong_candidates}, "candidates: "),
    (functions.WRITE_KEYS, {"k_norm_rope_mxfp4_cache": wrong_keys}, "differ|changed"),
    (functions.QUANTIZE_QUERY, {"q_rope_mxfp4_quant": wrong_queries}, "scales by head differ"),
    (functions.SELECT, {"top_k_per_row_decode": wrong_selection}, "selected columns differ"),
]


@pytest.mark.parametrize(("of", "names", "told"), WRONG, ids=[next(iter(names)) for _, names, _ in WRONG])
def test_an_aiter_that_answers_wrong_is_replaced(
    monkeypatch: pytest.MonkeyPatch, of: functions.IndexFunctions, names: dict[str, Any], told: str
) -> None:
    as_aiter(monkeypatch, of, **(launcher_names() if of is functions.SCORE else {}) | names)
    # V4.1's heads, whose layers score candidates too.
    route = routes.choose(CPU, 32, 64)[of.operation]
    assert route.backend == "dsv4"
    assert any(part in route.reason for part in told.split("|"))


def test_an_asked_aiter_that_is_missing_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_BACKEND", "aiter")
    with pytest.raises(HookError, match="DSV4_BACKEND=aiter: nothing serves paged_logits of vLLM's MXFP4 index"):
        routes.choose(CPU, 64, 64)


@pytest.mark.parametrize(("heads", "entries"), [(64, 64), (32, 64), (32, 128), (16, 64)])
def test_every_geometry_answers_known_questions(heads: int, entries: int) -> None:
    assert {route.backend for route in routes.choose(CPU, heads, entries).values()} == {"dsv4"}


def test_the_rotation_is_off_by_default_and_never_left_to_aiter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tensors.spec(32, 64).hadamard
    monkeypatch.setenv("DSV4_INDEX_HADAMARD", "1")
    as_aiter(monkeypatch, functions.WRITE_KEYS, k_norm_rope_mxfp4_cache=writers.k_norm_rope_mxfp4_cache)
    route = routes.choose(CPU, 64, 64)["write_index_keys"]
    assert route.backend == "dsv4"
    assert "DSV4_INDEX_HADAMARD=1, which it does not apply" in route.reason
    assert tensors.spec(32, 64).hadamard
