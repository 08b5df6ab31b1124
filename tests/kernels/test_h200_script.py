"""The script that measures on an H200: everything about it that needs no GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.h200 import correctness, oracle, replay, report, run, timing
from tools.h200.stages import Stage
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.logits_call import LogitsCall
from gluon_on_torch import kernels

hopper = pytest.importorskip("dsv4_kernels.hopper.logits", reason="needs triton")


@pytest.fixture
def _executed_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kernel in kernels(Path(hopper.__file__).parent).items():
        monkeypatch.setattr(hopper, name, kernel)
    monkeypatch.setattr(hopper, "_processors", lambda _device: 132)
    monkeypatch.setattr(correctness, "WIDTH", 320)
    monkeypatch.setattr(correctness, "ENDS", (1, 64, 65, 0, 320, 257))
    monkeypatch.setattr(correctness, "SEQUENCES", (0, 0, 0, 1, 1, 1))
    monkeypatch.setattr(correctness, "STARTS", (0, 60, 64, 0, 100, 7))
    monkeypatch.setattr(correctness, "MANY_ROWS", 8)
    monkeypatch.setattr(correctness, "MANY_KEYS", 128)


def test_the_oracle_is_the_reference_in_float64() -> None:
    for case in (oracle.Case.normal(2, 32, 6), oracle.Case.spread(2, 32, 6, 8)):
        table = torch.tensor([[5, 0, 3], [1, 4, 2]], dtype=torch.int32)
        ends, starts = [130, 192], [3, 0]
        exact = case.exact(table, starts, ends, [0, 1], case.weights, 0.5, 192)
        lengths, opened = (torch.tensor(v, dtype=torch.int32) for v in (ends, starts))
        known = reference.paged_logits(
            LogitsCall(
                query=case.query,
                pool=case.pool,
                weights=case.weights,
                page_table=table,
                lengths=lengths,
                starts=opened,
                weight_scale=0.5,
                max_seq_len=192,
                accumulate=torch.float64,
            )
        )
        seen = torch.isfinite(known)
        assert torch.equal(seen, ~torch.isnan(exact))
        torch.testing.assert_close(exact[seen], known[seen].double(), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("_executed_with_torch")
@pytest.mark.parametrize("group", ["single", "groups", "heads32"])
def test_correct_kernels_pass(group: str) -> None:
    results = list(correctness.run(group))
    assert {r["data"] for r in results} == set(correctness.BOUNDS)
    assert all(r["passed"] for r in results), results


@pytest.mark.usefixtures("_executed_with_torch")
def test_many_logits_of_correct_kernels_pass() -> None:
    results = list(correctness.run("many"))
    assert len(results) == 4
    assert all(r["passed"] for r in results), results


def one_row_off(out: Tensor) -> None:
    out[4] *= 1.001


def one_column_too_far(out: Tensor) -> None:
    out[0, 1] = 0.0


@pytest.mark.usefixtures("_executed_with_torch")
@pytest.mark.parametrize(("damage", "untouched"), [(one_row_off, True), (one_column_too_far, False)])
def test_wrong_kernels_do_not_pass(
    monkeypatch: pytest.MonkeyPatch, damage: Callable[[Tensor], None], untouched: bool
) -> None:
    right = hopper.launch

    def launch(*arguments: Any) -> object:
        compiled: object = right(*arguments)
        damage(arguments[8])
        return compiled

    monkeypatch.setattr(hopper, "launch", launch)
    result = correctness.check(oracle.Case.normal(6, 64, 33), correctness.Variant("wrong"), "normal", 64)
    assert not result["passed"]
    assert result["untouched"] is untouched


class Fixed(replay.Replay):
    """A replay that takes as long as it is told, one repeat after the other."""

    def __init__(self, times: list[float]) -> None:
        self.times, self.medians = times, []

    def sample(self, replays: int) -> None:
        self.medians.append(self.times[len(self.medians)])


def test_repeats_are_interleaved_and_their_median_is_told() -> None:
    found = replay.interleaved({"a": Fixed([3.0, 9.0, 4.0]), "b": Fixed([1.0, 1.0, 2.0])}, repeats=3)
    assert found == {"a": replay.Timing(4.0, 3.0, 9.0, 3), "b": replay.Timing(1.0, 1.0, 2.0, 3)}


def test_every_shape_of_the_bars_is_timed() -> None:
    shapes = {str(shape): candidates for group, candidates in timing.PLAN for shape in group}
    for name in ("64 x 65536", "256 x 16384", "64 x 16384", "16 x 2048", "1 x 16384"):
        assert shapes[name].keys() >= {"fp8", "hopper", "portable"}
    assert "64 x 65536, groups of 4" in shapes
    assert {"64 x 8192", "64 x 8192, max_seq_len 1048576"} <= shapes.keys()


def test_tables_show_times_errors_and_ratios() -> None:
    common = {"shape": "64 x 65536", "low": 90.0, "high": 99.0, "mbytes": 302.5, "gflop": 68.7, "roofline": 0.637}
    rows: list[report.Row] = [
        {"candidate": "fp8", "us": 140.0, **common},
        {"candidate": "hopper", "us": 100.0, **common},
        {"candidate": "hopper", "shape": "64 x 65536", "sustained_us": 110.0},
        {"candidate": "portable", "shape": "1 x 64", "error": "RuntimeError: no\nmore"},
    ]
    lines = report.timing(rows).splitlines()
    assert lines[3] == "| 64 x 65536 | hopper | 100.00 | 90.00 to 99.00 | 1.40 | 302.5 | 68.7 | 64 % |"
    assert lines[4] == "| 64 x 65536 | hopper, 1 s loop | 110.00 |  |  |  |  |  |"
    assert lines[5] == "| 1 x 64 | portable | failed | RuntimeError: no |  |  |  |  |"
    row = {"variant": "H=64", "data": "normal", "relative_error": 2e-8, "largest_error": 3e-8}
    row |= {"untouched": True, "repeatable": False, "passed": False}
    assert report.correctness([row]).splitlines()[2] == "| H=64 | normal | 2.0e-08 | 3.0e-08 | yes | NO | NO |"


@pytest.mark.parametrize(
    ("second", "agrees", "told"),
    [
        ({"id": 5, "logprob": -1.0}, True, "all 2 tokens equal; log-probabilities at most 0.0e+00 apart"),
        ({"id": 6, "logprob": -1.0}, True, "first difference at token 1: log-probabilities 5.00e-05 apart"),
        ({"id": 7, "logprob": -1.0}, False, "first difference at token 1: log-probabilities 2.00e-01 apart"),
        ({"id": 8, "logprob": -1.0}, False, "not a tie"),
    ],
)
def test_a_first_difference_must_be_a_tie(second: dict[str, Any], agrees: bool, told: str) -> None:
    first = {"id": 3, "logprob": -0.5, "top": [[3, -0.5]]}
    cpu = {"prompt": "p", "tokens": [first, {"id": 5, "logprob": -1.0, "top": [[5, -1.0], [6, -1.00005], [7, -1.2]]}]}
    found = report.engine(cpu, {"prompt": "p", "tokens": [first, second]}, run.TIE)
    assert found[0] is agrees
    assert told in found[1]
    assert report.engine(cpu, {"prompt": "q", "tokens": cpu["tokens"]}, run.TIE) == (False, "the two prompts differ")


def test_programs_are_kept_apart_and_ended_at_the_deadline(tmp_path: Path) -> None:
    stage = Stage(tmp_path, time.monotonic())
    stage.start("good", "-c", "print('{\"a\": 1}'); print('noise')")
    stage.start("bad", "-c", "import sys; print('part', flush=True); sys.exit('why')")
    stage.start("slow", "-c", "import time; print('begun', flush=True); time.sleep(60)")
    stage.wait(["good", "bad"], 30)
    deadline = time.monotonic() + 10
    while not stage.finished("slow").output and time.monotonic() < deadline:
        time.sleep(0.02)
    stage.wait(["slow"], 0)
    good, bad, slow = (stage.finished(name) for name in ("good", "bad", "slow"))
    assert (good.status, run.json_lines(good.output)) == (0, [{"a": 1}])
    assert (bad.status, bad.output.strip(), bad.errors.strip()) == (1, "part", "why")
    assert (slow.status, slow.output.strip()) == (None, "begun")
