"""`dsv4 plan` sizes a pool as SGLang's own configurator does, for every SGLang profile of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

import engine_context
from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.sglang_adapter import SglangAdapter
from dsv4_serve.planner import sglang_demand
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.options import server
from dsv4_serve.planner.row_formats import INDEX, MAIN
from dsv4_serve.profiles.load import REPOSITORY, load_profile, profile_names
from published_models import BY_NAME

PROFILES = [name for name in profile_names() if load_profile(name).engine.name == "sglang"]


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("available", [20 << 30, 150 << 30])
def test_the_plan_holds_as_many_tokens_as_the_engines_pools(
    name: str, available: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = load_profile(name)
    model = engine_context.write_model(tmp_path, **BY_NAME[profile.model.name])
    adapter = SglangAdapter(EngineRun(model, 30000))
    for variable, value in adapter.environment(profile).items():
        monkeypatch.setenv(variable, value)
    with engine_context.engine_of(adapter.command(profile)[2:]) as arguments:
        theirs = engine_context.pool_configurator(arguments)
        sizes = theirs.calculate_pool_sizes(available, 256)
    geometry = ModelGeometry.read(REPOSITORY / "configs" / "models" / profile.model.name / "config.json")
    told = server(profile, geometry)
    ours = sglang_demand.demand(geometry, MAIN[profile.kv_layout], INDEX[profile.indexer.dtype], told)
    assert ours.bytes_per_token == pytest.approx(theirs.bytes_per_full_token, rel=1e-12)
    # Our bound on the padding of low-ratio pools may cost a page.
    assert 0 <= sizes.full_max_total_num_tokens - ours.capacity(available) <= 256
