"""`dsv4 plan`: the published numbers, the sum of the memory table, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4_kernels import kv_pages, layout
from dsv4_serve.cli import app
from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.plan_command import GEOMETRIES, config_path, plan_for
from dsv4_serve.planner import report
from dsv4_serve.planner.demand import index_bytes_per_token
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.memory_plan import Machine, MemoryPlan
from dsv4_serve.planner.quantity import parse_bytes, written
from dsv4_serve.planner.row_formats import BF16, INDEX, V4
from dsv4_serve.profiles.load import load_profile, profile_names
from dsv4_serve.profiles.schema import Model, Profile
from embedded import v41_straight_line_engram as engram

PRODUCTION = [name for name in profile_names() if load_profile(name).engine.name == "sglang"]


def geometry(name: str) -> ModelGeometry:
    return ModelGeometry.read(GEOMETRIES / name / "config.json")


def profile(name: str, *words: str, **changes: Any) -> Profile:
    found = load_profile(name)
    engine = found.engine.model_copy(update={"extra_args": (*found.engine.extra_args, *words)})
    return found.model_copy(update={"engine": engine, **changes})


def planned(name: str, *words: str, **changes: Any) -> MemoryPlan:
    asked = profile(name, *words, **changes)
    return plan_for(asked, Machine(gpus=asked.tp))


@pytest.mark.parametrize(
    ("name", "fp8", "fp4"),
    [("DeepSeek-V4-Flash", 693, 357), ("DeepSeek-V4-Pro", 990, 510), ("DeepSeek-V4.1-Flash", 330, 170)],
)
def test_index_bytes_a_token_are_the_published_ones(name: str, fp8: float, fp4: float) -> None:
    assert index_bytes_per_token(geometry(name), INDEX["fp8"]) == fp8
    assert index_bytes_per_token(geometry(name), INDEX["fp4"]) == fp4


def test_formats_are_those_of_the_kernels() -> None:
    named = {"fp4": layout.SPLIT64, "fp8": layout.FP8, "bf16": layout.BF16}
    for name, of in named.items():
        assert (INDEX[name].payload, INDEX[name].scale) == (of.payload_bytes, of.scale_bytes)
    for rows in (2, 64, 128, 256):
        assert V4.page_bytes(rows) == kv_pages.page_bytes("v4", rows)
        assert BF16.page_bytes(rows) == kv_pages.page_bytes("bf16", rows)


@pytest.mark.parametrize("name", ["v4-pro-tp8", "v4-flash-tp4"])
def test_gain_by_window_ratio(name: str) -> None:
    plan = planned(name)
    found = report.as_json(plan)
    assert found["c4_layer_bytes_per_token"] == {"fp8": 179.25, "fp4": 163.25}
    by_ratio = {row["window_ratio"]: row["gain"] for row in found["gain"]["by_window_ratio"]}
    assert by_ratio[0.1] == pytest.approx(0.0498, abs=5e-5)
    assert by_ratio[0.0] == pytest.approx(0.094, abs=5e-4)
    assert max(by_ratio.values()) == by_ratio[0.0]
    # At the needed ratio the engine's formula gives the published gain.
    for row in found["gain"]["published"]:
        at = planned(name, "--swa-full-tokens-ratio", str(row["window_ratio_needed"]))
        by_index = {index: demand.bytes_per_token for index, demand in at.demands.items()}
        assert by_index["fp8"] / by_index["fp4"] - 1 == pytest.approx(row["gain"])


@pytest.mark.parametrize("name", PRODUCTION)
def test_the_memory_table_adds_up_to_hbm(name: str) -> None:
    plan = planned(name)
    assert sum(part.bytes for part in plan.parts) == 288 << 30
    if not plan.capacity[plan.selected]:
        assert "No token fits" in report.as_text(plan)
        return
    assert all(part.bytes >= 0 for part in plan.parts)
    regions = report.as_json(plan)["regions"]
    in_table = {p.name.removeprefix("kv "): p.bytes for p in plan.parts if p.name.startswith("kv ")}
    assert {region: row["bytes"] for region, row in regions.items()} == in_table
    # One page more would not fit beside the weights under the memory fraction.
    room = int((288 << 30) * 0.85) - next(p.bytes for p in plan.parts if p.name == "weights")
    used = sum(in_table.values()) + plan.demand.page_padding
    assert 0 <= room - used < 256 * plan.demand.bytes_per_token + len(in_table)


def test_options_change_the_plan() -> None:
    base = planned("v4-pro-tp8")
    assert planned("v4-pro-tp8", "--mem-fraction-static=0.9").capacity["fp4"] > base.capacity["fp4"]
    assert planned("v4-pro-tp8", speculative="eagle").capacity["fp4"] < base.capacity["fp4"]
    halves = planned("v4-pro-tp8", dp=2)
    assert halves.capacity["fp4"] > 1.9 * base.capacity["fp4"]
    workspace = {p.name: p.bytes for p in planned("v4-pro-tp8", "--chunked-prefill-size", "2048").parts}["workspace"]
    assert workspace == 2048 * 131072 // 4 * 4
    cut = {p.name: p.bytes for p in planned("v41-flash-tp8").parts}["workspace"]
    assert cut == 2 << 30
    smaller = planned("v41-flash-tp8", env={"SGLANG_DSV4_FP4_LOGITS_BUDGET_MB": "512"})
    assert {p.name: p.bytes for p in smaller.parts}["workspace"] == 512 << 20


def test_engram_tables_on_the_host_make_room_for_v41_on_two_gpus() -> None:
    there = {"SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": "1"}
    on_gpus, on_host = planned("v41-flash-tp2", env={}), planned("v41-flash-tp2", env=there)
    assert on_gpus.capacity == {"fp4": 0}
    assert on_host.capacity["fp4"] > 50_000_000
    assert "each GPU's weights hold 94.42 GiB. SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE=1 keeps" in report.as_text(on_gpus)
    assert "Engram tables: 188.83 GiB of host memory, one copy a machine" in report.as_text(on_host)


@pytest.mark.parametrize(("name", "share"), [("v41-flash-tp4", "2.50%"), ("v4-pro-tp8-eagle", "1.64%")])
def test_a_draft_share_is_told_because_regions_cost_more_than_index_keys(name: str, share: str) -> None:
    told = f"Regions cost {share} more than their rows"
    assert told in report.as_text(planned(name))
    assert "Regions cost" not in report.as_text(planned(name, speculative="off"))


def test_engram_tables_have_the_rows_that_their_hashes_reach() -> None:
    """A table has a part for each of 3 n-gram sizes and 8 heads, whose size is a prime of its own from 16 million."""
    config = json.loads((GEOMETRIES / "DeepSeek-V4.1-Flash" / "config.json").read_text())
    assert [sum(sizes) for sizes in engram.primes(config)] == config["engram_num_embeddings"]
    assert [len(sizes) for sizes in engram.primes(config)] == [24, 24]


@pytest.mark.parametrize(("name", "tp"), [("v41-flash-tp4", 4), ("v41-flash-tp8", 8)])
def test_a_gpu_holds_its_share_of_the_engram_tables(name: str, tp: int) -> None:
    """256 e4m3 values and 8 scales a row: 188.8 GiB in all, which SGLang spreads over the ranks of a replica."""
    tables = (384006168 + 384016682) * 264
    assert tables / 2**30 == pytest.approx(188.83, abs=0.01)

    def weights(**there: str) -> int:
        return next(part.bytes for part in planned(name, env=there).parts if part.name == "weights")

    on_gpus, on_host = weights(), weights(SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE="1")
    assert on_gpus - on_host == pytest.approx(tables / tp, abs=1)


@pytest.mark.parametrize(
    ("name", "shipped", "told"),
    [
        (
            "tiny",
            "tiny-v41",
            "DSV4_KV_LAYOUT=v4 .profile tiny.: .* is of a V4.1; accepted is v41, or a profile",
        ),
        (
            "tiny-v41",
            "tiny-v4",
            "DSV4_KV_LAYOUT=v41 .* is of a V4; accepted is v4 or bf16, or a profile of that",
        ),
    ],
)
def test_a_model_of_the_other_generation_is_refused_instead_of_sized_by_the_wrong_rows(
    name: str, shipped: str, told: str
) -> None:
    other = Model(name=shipped, path=str(GEOMETRIES / shipped), context_length=4096)
    with pytest.raises(UsageError, match=told):
        planned(name, model=other)


def test_a_pool_below_the_context_is_told() -> None:
    engine = load_profile("tiny-v41").engine.model_copy(update={"max_total_tokens": 1024})
    told = "A request of the whole context, 4,096 tokens, does not fit"
    assert told in report.as_text(planned("tiny-v41", engine=engine))
    assert told not in report.as_text(planned("tiny-v41"))


def test_v41_has_no_fp8_choice_and_says_so() -> None:
    found = report.as_json(planned("v41-flash-tp4"))
    assert found["index_bytes_per_token"]["fp8"] == 330
    assert list(found["capacity_tokens_by_indexer"]) == ["fp4"]
    assert found["gain"] is None
    assert "FP4 by definition" in report.as_text(planned("v41-flash-tp4"))


@pytest.mark.parametrize("name", ["tiny", "tiny-v41"])
def test_embedded_regions_are_those_of_its_pools(name: str) -> None:
    from dsv4_serve.engines.embedded.config import ModelConfig
    from dsv4_serve.engines.embedded.families import load_config
    from dsv4_serve.engines.embedded.options import EngineOptions
    from dsv4_serve.engines.embedded.pools import CachePools
    from dsv4_serve.engines.embedded.v4_pools import V4Pools
    from dsv4_serve.engines.embedded.v41.config import V41Config
    from dsv4_serve.engines.embedded.v41.pools import V41Pools

    profile = load_profile(name)
    path = config_path(profile.model)
    _, config = load_config(path.parent)
    options = EngineOptions(path.parent, "tiny", max_total_tokens=4096)
    pools: CachePools
    if isinstance(config, V41Config):
        pools = V41Pools(config, options, 4096)
    else:
        assert isinstance(config, ModelConfig)
        pools = V4Pools(config, options, 4096)
    real = {region.name: region.bytes for region in pools.regions() if region.name != "main"}
    small = profile.model_copy(update={"engine": profile.engine.model_copy(update={"max_total_tokens": 4096})})
    plan = plan_for(small, Machine())
    assert plan.demand.bytes_at(4096) == real
    assert plan.capacity["fp4"] == pools.capacity_tokens == 4096


def test_weights_on_disk_replace_the_estimate(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((GEOMETRIES / "DeepSeek-V4-Flash" / "config.json").read_text())
    with (tmp_path / "model-00001.safetensors").open("wb") as file:
        file.truncate(160 << 30)
    here = load_profile("v4-flash-tp4")
    here = here.model_copy(update={"model": here.model.model_copy(update={"path": str(tmp_path)})})
    plan = plan_for(here, Machine(gpus=4))
    assert plan.parts[0].source == f"files in {tmp_path}"
    assert 40 << 30 <= plan.parts[0].bytes <= 45 << 30


def test_too_small_a_gpu_holds_nothing_and_says_so() -> None:
    asked = profile("v4-pro-tp8")
    text = report.as_text(plan_for(asked, Machine(hbm=64 << 30, gpus=8)))
    assert "This does not fit" in text
    assert "No token fits" in text


@pytest.mark.parametrize(
    ("text", "size"), [("288GiB", 288 << 30), ("1.5 gb", 1500000000), ("1024", 1024), ("2TiB", 2 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, "--hbm") == size


def test_sizes_are_shown_in_a_unit_that_shows_them() -> None:
    assert written(3 << 30) == "3.00 GiB"
    assert written(10 << 20) == "10.00 MiB"


@pytest.mark.parametrize("text", ["", "x", "12 parsecs", "-1GiB", "0"])
def test_refused_sizes(text: str) -> None:
    with pytest.raises(UsageError, match=r"--hbm .*accepted is a size above 0"):
        parse_bytes(text, "--hbm")


def test_refusals_name_value_and_accepted_form(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--gpus 6: accepted is a multiple of the profile's TP 8"):
        plan_for(profile("v4-pro-tp8"), Machine(gpus=6))
    with pytest.raises(UsageError, match=r"--mem-fraction-static 1.5 .*above 0 and below 1"):
        planned("v4-pro-tp8", "--mem-fraction-static", "1.5")
    with pytest.raises(UsageError, match=r"--chunked-prefill-size 'many'"):
        planned("v4-pro-tp8", "--chunked-prefill-size", "many")
    config = tmp_path / "config.json"
    config.write_text("{}")
    with pytest.raises(CommandError, match="no num_hidden_layers"):
        ModelGeometry.read(config)
    wrong = json.loads((GEOMETRIES / "DeepSeek-V4-Pro" / "config.json").read_text())
    config.write_text(json.dumps(wrong | {"compress_ratios": [3] * 61}))
    with pytest.raises(CommandError, match=r"compress_ratios \[3\]: accepted is one of"):
        ModelGeometry.read(config)
    with pytest.raises(CommandError, match=r"no geometry comes with it; there are DeepSeek-V4-Flash"):
        config_path(load_profile("v4-pro-tp8").model.model_copy(update={"name": "Other"}))


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSV4_PROFILE", raising=False)
    assert app(["plan", "--profile", "v4-pro-tp8", "--indexer-dtype", "fp8", "--json"], standalone_mode=False) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["indexer_dtype"] == "fp8"
    assert found["capacity_tokens"] == found["capacity_tokens_by_indexer"]["fp8"]
    assert found["index_bytes_per_token"] == {"fp4": 510, "fp8": 990, "bf16": 1920}
    assert set(found["regions"]) == {"c4", "c128", "index_payload", "index_scale", "window", "state"}
