"""`dsv4 eval --quick` on the committed model, with bounds on what it finds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dsv4_serve.evaluation.results import EvalResults
from dsv4_serve.evaluation.tables import every_table


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> EvalResults:
    out = tmp_path_factory.mktemp("eval")
    command = [sys.executable, "-m", "dsv4_serve.cli", "eval", "--quick", "--json"]
    command += ["--out", str(out / "results.json"), "--charts", str(out / "charts")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    assert "answers: fp4-aiter, top-8" in done.stderr, "progress is shown"
    results = EvalResults.read(out / "results.json")
    assert json.loads(done.stdout) == results.to_json()
    assert {path.suffix for path in (out / "charts").iterdir()} == {".svg", ".png"}
    return results


def recall(results: EvalResults, variant: str, k: int) -> float:
    entries = [entry for entry in results.selections if (entry.variant, entry.k) == (variant, k)]
    return sum(entry.recall * entry.queries for entry in entries) / sum(entry.queries for entry in entries)


def margin_loss(results: EvalResults, variant: str, k: int) -> float:
    entries = [entry for entry in results.selections if (entry.variant, entry.k) == (variant, k)]
    return sum(entry.margin_loss * entry.queries for entry in entries) / sum(entry.queries for entry in entries)


@pytest.mark.slow
def test_fp4_answers_as_bf16_does(quick: EvalResults) -> None:
    for variant in ("bf16", "fp4-aiter"):
        for k in (64, 8):
            right = [outcome.right for outcome in quick.outcomes if (outcome.variant, outcome.k) == (variant, k)]
            assert len(right) == 15
            assert sum(right) >= 14


@pytest.mark.slow
@pytest.mark.parametrize("k", [8, 64])
def test_recall_falls_with_the_bits_and_stays_above_the_bounds(quick: EvalResults, k: int) -> None:
    bf16, fp8, fp4 = (recall(quick, variant, k) for variant in ("bf16", "fp8", "fp4-aiter"))
    assert 0.99 < bf16 <= 1
    assert 0.93 < fp8 < bf16
    assert (0.75 if k == 8 else 0.87) < fp4 < fp8
    assert margin_loss(quick, "fp4-aiter", k) < 0.03


@pytest.mark.slow
def test_conventions_pick_alike_and_faults_stand_out(quick: EvalResults) -> None:
    for convention in ("cuda_c4", "rne_v41", "deepseek"):
        assert recall(quick, f"fp4-{convention}", 64) == pytest.approx(recall(quick, "fp4-aiter", 64), abs=0.005)
    assert recall(quick, "fault: rotation on one side only", 64) < 0.7
    assert margin_loss(quick, "fault: scales one place off", 64) > 2 * margin_loss(quick, "fp4-aiter", 64)


@pytest.mark.slow
def test_logits_barely_move(quick: EvalResults) -> None:
    found = {entry.variant: entry for entry in quick.logits}
    assert set(found) == {"float32-plain", "bf16", "fp4-aiter"}
    assert found["float32-plain"].kl == found["float32-plain"].nats_more == 0
    assert found["bf16"].kl < found["fp4-aiter"].kl < 0.02
    assert abs(found["fp4-aiter"].perplexity / found["float32-plain"].perplexity - 1) < 0.02
    assert found["fp4-aiter"].agreement > 0.95


@pytest.mark.slow
def test_every_table_is_filled(quick: EvalResults) -> None:
    assert [table.title for table in every_table(quick)] == [
        "Accuracy",
        "Differences to bf16, all tasks",
        "Look-ups by distance in bytes",
        "Top-k recall and score-margin loss",
        "The same at top-64 by layer and context",
        "Held-out prose",
    ]
