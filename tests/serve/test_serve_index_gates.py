"""One policy of the FP4 index for both engines: each gate closes on its own, and what then happens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4_kernels import counters
from dsv4_serve.engines.index_gates import IndexRefusedError, IndexRequest, falls_back, refusals
from dsv4_serve.errors import PreflightError
from dsv4_serve.plan import Plan, make_plan
from dsv4_serve.preflight.index import settle_index
from dsv4_serve.preflight.run import checks_of, require_preflight
from serve.simulated_machine import Simulated, simulate

OPEN = IndexRequest("vllm", "deepseek_v4", "gfx950:sramecc+:xnack-", 64)
CLOSED = [
    ({"model_type": "deepseek_v32"}, "model_type=deepseek_v32: accepted is deepseek_v4 or deepseek_v41"),
    ({"arch": "gfx942"}, "architecture=gfx942: accepted is gfx950"),
    ({"arch": "gfx9500"}, "architecture=gfx9500: accepted is gfx950"),
    ({"head_dim": 64}, "index_head_dim=64: accepted is 128"),
    ({"rope_dim": 32}, "qk_rope_head_dim=32: accepted is 64"),
    ({"heads": 24}, "index_n_heads=24: accepted is a multiple of 16 from 16 to 64"),
    ({"heads": 128}, "index_n_heads=128: accepted is a multiple of 16 from 16 to 64"),
    ({"context_parallel": 2}, "context parallel size=2: accepted is 1: every rank scores all keys"),
    ({"missing": "AITER is off"}, "dependency=AITER is off: accepted is what the engine's FP4 index needs"),
]


def test_all_gates_are_open_for_what_is_served() -> None:
    assert refusals(OPEN) == ()
    assert refusals(replace(OPEN, engine="sglang", model_type="deepseek_v41", arch="gfx950", heads=32)) == ()
    assert refusals(replace(OPEN, heads=128, most_heads=128)) == ()


@pytest.mark.parametrize(("change", "told"), CLOSED, ids=[told.partition("=")[0] for _, told in CLOSED])
def test_each_gate_closes_alone(change: dict[str, Any], told: str) -> None:
    assert refusals(replace(OPEN, **change)) == (told,)


def test_fp4_that_cannot_be_is_an_error_that_says_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSV4_ALLOW_FALLBACK", raising=False)
    with pytest.raises(IndexRefusedError, match=r"architecture=gfx942: .* \(DSV4_INDEXER_DTYPE=fp8 does without"):
        falls_back(replace(OPEN, arch="gfx942"))


def test_a_permitted_fallback_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSV4_ALLOW_FALLBACK", "1")
    before = counters.snapshot().fallbacks.get(("index_dtype", "architecture"), 0)
    assert falls_back(OPEN) == ""
    assert "architecture=gfx942" in falls_back(replace(OPEN, arch="gfx942"))
    assert counters.snapshot().fallbacks["index_dtype", "architecture"] == before + 1
    with pytest.raises(IndexRefusedError, match="no FP8 index here"):
        falls_back(replace(OPEN, arch="gfx942", has_fp8=False))


# The launcher, before it starts an engine


@pytest.fixture
def machine(tmp_path: Path) -> Simulated:
    return simulate(tmp_path)


def plan(tmp_path: Path, profile: str, words: tuple[str, ...] = (), /, **toggles: str) -> Plan:
    """A profile with `words` behind its engine's command."""
    made = make_plan({"DSV4_PROFILE": profile, "DSV4_MODEL": str(tmp_path), **toggles}, {})
    engine = made.profile.engine.model_copy(update={"extra_args": (*made.profile.engine.extra_args, *words)})
    return replace(made, profile=made.profile.model_copy(update={"engine": engine}))


FP4 = {"DSV4_INDEXER_DTYPE": "fp4"}


@pytest.mark.parametrize("profile", ["v4-pro-tp8", "v41-flash-tp8", "vllm-v4-flash-tp8", "vllm-v41-flash-tp8"])
def test_nothing_changes_where_fp4_can_be(tmp_path: Path, machine: Simulated, profile: str) -> None:
    asked = plan(tmp_path, profile, **FP4)
    assert settle_index(asked, machine.machine()) is asked


@pytest.mark.parametrize("profile", ["v4-pro-tp8", "vllm-v4-flash-tp8"])
@pytest.mark.parametrize("words", [("--decode-context-parallel-size", "2"), ("--decode-context-parallel-size=2",)])
def test_both_engines_refuse_context_parallelism(
    tmp_path: Path, machine: Simulated, profile: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(PreflightError, match=r"context parallel size=2: .* DSV4_INDEXER_DTYPE=fp8 does without"):
        settle_index(plan(tmp_path, profile, words, **FP4), machine.machine())


def test_a_permitted_fallback_serves_fp8_with_a_warning(tmp_path: Path, machine: Simulated) -> None:
    words = ("-dcp", "2")
    asked = plan(tmp_path, "vllm-v4-flash-tp8", words, **FP4, DSV4_ALLOW_FALLBACK="1")
    settled = settle_index(asked, machine.machine())
    assert settled.profile.indexer.dtype == "fp8"
    assert '{"indexer_kv_dtype": "fp8"}' in settled.describe()["command"]
    assert settled.warnings[-1].endswith("FP8 serves, as --allow-fallback permits")


def test_a_model_without_an_fp8_index_cannot_fall_back(tmp_path: Path, machine: Simulated) -> None:
    asked = plan(tmp_path, "v41-flash-tp8", ("--attention-context-parallel-size", "2"), DSV4_ALLOW_FALLBACK="1")
    with pytest.raises(PreflightError, match="deepseek_v41 has no FP8 index there to fall back to"):
        settle_index(asked, machine.machine())


def test_the_models_own_configuration_is_held_against_the_gates(tmp_path: Path, machine: Simulated) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "deepseek_v4", "index_n_heads": 24}')
    with pytest.raises(PreflightError, match="index_n_heads=24: accepted is a multiple of 16 from 16 to 128"):
        settle_index(plan(tmp_path, "vllm-v4-flash-tp8", **FP4), machine.machine())


def other_architecture(machine: Simulated) -> None:
    """Every GPU is a gfx942."""
    for path in machine.root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"):
        path.write_text(path.read_text().replace("gfx_target_version 90500", "gfx_target_version 90402"))


@pytest.mark.parametrize("profile", ["v4-pro-tp8", "vllm-v4-flash-tp8"])
def test_another_architecture_is_refused_before_anything_loads(
    tmp_path: Path, machine: Simulated, profile: str
) -> None:
    other_architecture(machine)
    found = {r.name: r for r in checks_of(plan(tmp_path, profile, **FP4), {}, machine.machine())}
    assert found["FP4 index"].level == found["architecture"].level == "fail"
    assert "architecture=gfx942: accepted is gfx950; DSV4_INDEXER_DTYPE=fp8 does without" in found["FP4 index"].found
    with pytest.raises(PreflightError, match="architecture=gfx942"):
        require_preflight(plan(tmp_path, profile, **FP4), {}, machine.machine(), lambda _line: None)


@pytest.mark.parametrize("profile", ["v4-pro-tp8", "vllm-v4-flash-tp8"])
def test_another_architecture_serves_fp8_where_that_is_permitted(
    tmp_path: Path, machine: Simulated, profile: str
) -> None:
    asked = plan(tmp_path, profile, **FP4, DSV4_ALLOW_FALLBACK="1")

    def named(level: str) -> set[str]:
        checks = checks_of(asked, machine.environment(), machine.machine(), machine.proof)
        return {each.name for each in checks if each.level == level}

    before = named("fail")
    other_architecture(machine)
    assert named("fail") <= before
    assert named("warn") >= {"FP4 index", "architecture"}
    settled = settle_index(asked, machine.machine())
    assert settled.profile.indexer.dtype == "fp8"
    assert len(settled.warnings) == len(asked.warnings) + 1
    assert "architecture=gfx942" in settled.warnings[-1]


def test_a_start_on_another_architecture_goes_on_with_the_plan_that_serves(machine: Simulated) -> None:
    other_architecture(machine)
    toggles = {"DSV4_PROFILE": "v4-pro-tp8", "DSV4_MODEL": str(machine.model), **FP4, "DSV4_ALLOW_FALLBACK": "1"}
    told: list[str] = []
    settled = require_preflight(
        make_plan(toggles, {}), machine.environment(), machine.machine(), told.append, machine.proof
    )
    assert settled.profile.indexer.dtype == "fp8"
    assert any(line.startswith("preflight: warn: architecture: 8 GPUs, among them gfx942") for line in told)
