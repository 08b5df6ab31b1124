"""`dsv4 kernels bench`: bytes and FLOP by hand, inputs that a backend scores right, the report, and no GPU."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from dsv4_kernels import backends, reference
from dsv4_kernels.bench.inputs import Inputs
from dsv4_kernels.bench.replay import Launch, Timing
from dsv4_kernels.bench.roofline import DEVICES, device_called
from dsv4_kernels.bench.run import Result, measure
from dsv4_kernels.bench.workload import WORKLOADS, Workload
from dsv4_serve import kernel_bench
from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.kernels_command import app

BY_NAME = {workload.name: workload for workload in WORKLOADS}
MI355X = DEVICES[0]
SMALL = Workload("small", 8, 128, 16, sequences=2, layers=3)


def test_bytes_and_flop_of_the_published_steps() -> None:
    step = BY_NAME["step-30-layers-64x64k"]
    keys = 30 * 64 * 16384
    assert step.read_bytes == keys * 68 + keys // 64 * 4 + 30 * 64 * 64 * 70
    assert step.written_bytes == keys * 4
    assert step.flop == keys * 64 * 256
    # What the roofline of the keys alone says of it: 2.14 GB, 267 us at 8 TB/s.
    assert keys * 68 / 8e12 == pytest.approx(267e-6, rel=0.01)
    verify = BY_NAME["step-30-layers-verify-4x64x64k"]
    assert verify.flop == pytest.approx(2.06e12, rel=0.01)
    assert verify.read_bytes < 1.1 * step.read_bytes
    assert MI355X.limit(step) == "memory"
    prefill = BY_NAME["prefill-8192x8k"]
    assert prefill.scored == 8192 * 8193 // 2
    assert MI355X.bound_us(prefill) == pytest.approx(prefill.flop / 10.07e15 * 1e6)


def test_every_published_shape_says_who_timed_it() -> None:
    assert len(BY_NAME) == len(WORKLOADS) == 5
    for workload in WORKLOADS:
        assert "MI355X" in workload.published
        assert all(device.bound_us(workload) > 0 for device in DEVICES)
    with pytest.raises(ValueError, match="odd: rows must be a multiple of sequences, keys one of 64"):
        Workload("odd", 5, 64, sequences=2)


@pytest.mark.parametrize("causal", [False, True])
def test_inputs_are_calls_over_pools_of_their_own(causal: bool) -> None:
    workload = Workload("small", 8, 128, 16, sequences=2, layers=3, causal=causal)
    one = 2 * 128 * 68 * 3
    inputs = Inputs.make(workload, "cpu", set_bytes=2 * one)
    assert [len(unit) for unit in inputs.units] == [3, 3]
    calls = [call for unit in inputs.units for call in unit]
    assert len({call.pool.payload.data_ptr() for call in calls}) == 6
    for call in calls:
        assert call.row_to_seq is not None
        assert call.row_to_seq.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
        assert sorted(call.page_table.flatten().tolist()) == [0, 1, 2, 3]
        assert call.lengths.tolist() == ([16 * (i + 1) for i in range(8)] if causal else [128] * 8)
        assert bool(torch.isfinite(reference.paged_logits(call)[:, :16]).all())
    assert sum(int(c.lengths.sum()) for c in inputs.units[0]) == 3 * workload.scored


def once(candidates: dict[str, tuple[Launch, int]]) -> dict[str, Timing]:
    """Runs every unit once; a CPU has no graphs to time."""
    for launch, units in candidates.values():
        for number in range(units):
            launch(number)
    return {name: Timing(2.0, 1.5, 3.0, 5) for name in candidates}


def test_every_backend_is_timed_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    score = reference.paged_logits

    def counted(call: object) -> object:
        asked.append(1)
        return score(call)  # type: ignore[arg-type]

    monkeypatch.setattr(reference, "paged_logits", counted)
    results = list(measure([SMALL], ["reference", "aiter"], "cpu", once, set_bytes=1))
    assert [(r.backend, r.timing is None) for r in results] == [("reference", False), ("aiter", True)]
    assert results[1].error.startswith("BackendUnavailableError: cannot import aiter")
    assert len(asked) == 2 * SMALL.layers


def test_the_report_gives_rates_and_the_share_of_the_roofline() -> None:
    step = BY_NAME["step-30-layers-16x8k"]
    results = [Result(step, "gfx950", Timing(100.0, 90.0, 110.0, 5)), Result(step, "aiter", error="no aiter")]
    table = kernel_bench.report(results, "AMD Instinct MI355X", False).splitlines()
    share = round(MI355X.bound_us(step))
    rates = f"{step.bytes / 100 / 1e6:.2f} | {step.flop / 100 / 1e6:.0f}"
    assert table[4] == f"| {step.name} | gfx950 | 100.00 | 90.00 to 110.00 | {rates} | {share} % (memory) |"
    assert table[5] == f"| {step.name} | aiter | - | no aiter | - | - | - |"
    told = json.loads(kernel_bench.report(results, "Some GPU", True))
    assert told["device"] == "Some GPU"
    assert told["results"][0]["us"] == 100.0
    assert told["results"][0]["share_of_roofline"] is None
    assert told["results"][1]["error"] == "no aiter"
    assert device_called("NVIDIA H200") is DEVICES[2]


def test_shapes_are_listed_without_a_gpu() -> None:
    done = CliRunner().invoke(app, ["bench", "--list"])
    assert done.exit_code == 0
    assert all(workload.name in done.stdout for workload in WORKLOADS)
    assert "None of these shapes was ever timed on an AMD GPU by this project" in done.stdout
    told = json.loads(CliRunner().invoke(app, ["bench", "--list", "--only", "prefill", "--json"]).stdout)
    (prefill,) = told["workloads"]
    assert prefill["flop"] == BY_NAME["prefill-8192x8k"].flop
    assert prefill["bound_us"]["MI355X"] > 0


def test_without_a_gpu_nothing_is_timed_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = CliRunner().invoke(app, ["bench"])
    assert isinstance(done.exception, CommandError)
    assert str(done.exception).startswith("no GPU here: nothing was timed")
    for words, message in (
        (["--only", "no"], "--only no: there are step-30"),
        (["--backend", "y"], "--backend y: one of"),
    ):
        refused = CliRunner().invoke(app, ["bench", *words])
        assert isinstance(refused.exception, UsageError)
        assert str(refused.exception).startswith(message)


def test_candidates_come_by_preference() -> None:
    assert backends.candidates("paged_logits", "cpu") == ("reference",)
