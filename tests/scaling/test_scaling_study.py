"""What docs/scaling.md tells is what the recorded study says, and the model still says it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tools.scaling import published, tables
from tools.scaling.calibrate import mean, setup_of
from tools.scaling.fleet import Setup, simulate
from tools.scaling.node import Costs
from tools.scaling.routing import cache_aware, round_robin
from tools.scaling.workload import Workload, bucket_shares, fit_lengths

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((DOCS / "scaling" / "results.json").read_text(encoding="utf-8"))
    return recorded


@pytest.fixture(scope="module")
def setups(results: dict[str, Any]) -> dict[str, Setup]:
    found = results["calibrated"]
    workload = Workload(**found["workload"])
    return {
        "fp8_16": setup_of(published.FP8_16, workload, Costs(**found["fp8"])),
        "fp8_48": setup_of(published.FP8_48, workload, Costs(**found["fp8"])),
        "fp4_48": setup_of(published.FP4_48, workload, Costs(**found["fp4"])),
    }


@pytest.mark.parametrize("table", [tables.parameters, tables.rows, tables.capacity])
def test_the_page_holds_the_recorded_tables(table: Any, results: dict[str, Any]) -> None:
    assert table(results) in (DOCS / "scaling.md").read_text(encoding="utf-8")


def test_all_tables_are_those_of_the_record(results: dict[str, Any]) -> None:
    assert (DOCS / "scaling" / "tables.md").read_text(encoding="utf-8") == tables.render(results)


def test_the_lengths_are_the_fit_to_the_published_buckets(results: dict[str, Any]) -> None:
    fitted = fit_lengths()
    assert (results["calibrated"]["workload"]["last_median"], results["calibrated"]["workload"]["last_sigma"]) == fitted
    total = sum(count for _, count in published.CONTEXT_BUCKETS)
    shares = [count / total for _, count in published.CONTEXT_BUCKETS]
    assert max(abs(bucket_shares(*fitted) - shares)) < 0.07


def test_the_recorded_parameters_give_the_recorded_row(setups: dict[str, Setup], results: dict[str, Any]) -> None:
    outcome = mean(setups["fp8_16"])
    assert asdict(outcome) == pytest.approx(results["rows"]["fp8_16"]["model"])
    assert outcome.throughput == pytest.approx(published.FP8_16.throughput, rel=0.01)
    assert outcome.ttft_median == pytest.approx(published.FP8_16.ttft_seconds, rel=0.01)
    assert outcome.gpu_hit == pytest.approx(published.FP8_16.gpu_hit, abs=0.001)


def test_the_48_client_rows_show_the_published_trend(setups: dict[str, Setup]) -> None:
    """A larger pool: more found on the GPU, less on the host, a sooner first token. Nothing was fixed on these rows."""
    fp8, fp4 = simulate(setups["fp8_48"]), simulate(setups["fp4_48"])
    assert fp4.gpu_hit > fp8.gpu_hit
    assert fp4.host_hit < fp8.host_hit
    assert fp4.ttft_median < fp8.ttft_median
    assert fp8.gpu_hit == pytest.approx(published.FP8_48.gpu_hit, abs=0.03)


def test_a_seed_decides_everything(setups: dict[str, Setup]) -> None:
    short = replace(setups["fp8_16"], hours=0.5)
    assert simulate(short) == simulate(short)
    assert simulate(short) != simulate(replace(short, seed=2))


def test_prefixes_stay_with_their_node_only_under_cache_aware_routing(setups: dict[str, Setup]) -> None:
    fleet = replace(setups["fp8_16"], nodes=6, clients=36, hours=0.5)
    assert simulate(fleet, cache_aware()).gpu_hit > 1.2 * simulate(fleet, round_robin()).gpu_hit
