"""`dsv4 plan` sizes a pool as SGLang's own configurator does, for every SGLang profile of the project."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.environ import envs
from sglang.srt.layers import engram
from sglang.srt.runtime_context import get_spec

import engine_context
from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.sglang_adapter import SglangAdapter
from dsv4_serve.planner import demand, sglang_demand, weights
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.options import server
from dsv4_serve.planner.row_formats import INDEX, MAIN
from dsv4_serve.profiles.load import REPOSITORY, load_profile, profile_names
from published_models import BY_NAME

PROFILES = [name for name in profile_names() if load_profile(name).engine.name == "sglang"]
V41 = [name for name in PROFILES if load_profile(name).model.name == "DeepSeek-V4.1-Flash"]


@contextmanager
def started(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The engine of a profile, its command line parsed by its own parser."""
    profile = load_profile(name)
    model = engine_context.write_model(directory, **BY_NAME[profile.model.name])
    adapter = SglangAdapter(EngineRun(model, 30000))
    for variable, value in adapter.environment(profile).items():
        monkeypatch.setenv(variable, value)
    with engine_context.engine_of(adapter.command(profile)[2:]) as arguments:
        yield arguments


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("available", [20 << 30, 150 << 30])
def test_the_plan_holds_as_many_tokens_as_the_engines_pools(
    name: str, available: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = load_profile(name)
    with started(name, tmp_path, monkeypatch) as arguments:
        theirs = engine_context.pool_configurator(arguments)
        sizes = theirs.calculate_pool_sizes(available, 256)
    geometry = ModelGeometry.read(REPOSITORY / "configs" / "models" / profile.model.name / "config.json")
    told = server(profile, geometry)
    ours = sglang_demand.demand(geometry, MAIN[profile.kv_layout], INDEX[profile.indexer.dtype], told)
    assert ours.bytes_per_token == pytest.approx(theirs.bytes_per_full_token, rel=1e-12)
    # Our bound on the padding of low-ratio pools may cost a page.
    assert 0 <= sizes.full_max_total_num_tokens - ours.capacity(available) <= 256


def test_v41_is_planned_on_two_four_and_eight_gpus() -> None:
    assert V41 == ["v41-flash-tp2", "v41-flash-tp4", "v41-flash-tp8"]


@pytest.mark.parametrize("name", V41)
def test_v41_profiles_are_parsed_as_they_are_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parallel = {"v41-flash-tp2": (2, 1), "v41-flash-tp4": (4, 4), "v41-flash-tp8": (8, 8)}[name]
    with started(name, tmp_path, monkeypatch) as arguments:
        assert (arguments.tp_size, arguments.ep_size) == parallel
        # The block that is drafted and the token before it.
        assert (get_spec().speculative_algorithm, get_spec().speculative_num_draft_tokens) == ("DSPARK", 6)
        assert envs.SGLANG_DSV4_KV_LAYOUT.get() == "v41"
        assert envs.SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE.get() == (name == "v41-flash-tp2")


def test_index_keys_of_all_v41_layers_cost_170_bytes_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four layers own keys, three of them one for two tokens; in FP8 they would cost 330."""
    with started("v41-flash-tp8", tmp_path, monkeypatch) as arguments:
        theirs = engine_context.pool_configurator(arguments)
        owners = {ratio: len(theirs.stage_owner_layers.get(ratio, ())) for ratio in (1, 2)}
        assert owners == {1: 1, 2: 3}
        assert sum(count * theirs.low_ratio_index_bytes / ratio for ratio, count in owners.items()) == 170
    geometry = ModelGeometry.read(REPOSITORY / "configs" / "models" / "DeepSeek-V4.1-Flash" / "config.json")
    planned = {name: demand.index_bytes_per_token(geometry, INDEX[name]) for name in ("fp8", "fp4")}
    assert planned == {"fp8": 3 * 132 / 2 + 132, "fp4": 170}


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_hold_equal_shares_of_the_engram_tables(ranks: int) -> None:
    """SGLang cuts a table where a hash column ends: whole columns a rank, each its rows of 264 bytes."""
    path = REPOSITORY / "configs" / "models" / "DeepSeek-V4.1-Flash" / "config.json"
    config = SimpleNamespace(**json.loads(path.read_text()))
    layout = engram.EngramLayout.from_config(config)
    assert layout is not None
    held = [0] * ranks
    for table, rows in enumerate(layout.num_embeddings):
        for rank in range(ranks):
            first, end = engram.shard_range(rows, layout.column_bounds(table), rank, ranks)
            held[rank] += (end - first) * 264
    geometry = ModelGeometry.read(path)
    tables = weights.weights(geometry, Path("nowhere"), draft=False).tables
    assert sum(held) == tables
    # Primes from 16 million on are close together.
    assert max(held) == pytest.approx(tables / ranks, rel=2e-5)
