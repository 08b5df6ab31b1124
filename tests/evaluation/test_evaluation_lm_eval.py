"""`dsv4 eval --lm-eval --run`: the real lm-eval against the real server, and what goes wrong in plain words."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dsv4_serve.cli import app
from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.evaluation.lm_eval import LmEvalTask, command
from dsv4_serve.evaluation.lm_eval_run import read_scores
from dsv4_serve.models import TRAINED_TINY
from evaluation.lm_eval_task import NAME, write_task
from serve.harness import COMMAND, Launcher

PROGRAM = Path(__file__).parents[1] / "lm_eval" / ".venv" / "bin" / "lm_eval"
QUESTIONS = 10


def invoke(*arguments: str) -> Result:
    words = ["eval", "--lm-eval", "--run", *arguments]
    return CliRunner().invoke(app, words, standalone_mode=False, catch_exceptions=False)


@pytest.fixture(scope="module")
def program() -> str:
    """lm-eval in the environment of its lock; skips without it, except in CI, where that is a failure."""
    if not PROGRAM.exists():
        assert os.environ.get("CI") != "true", f"{PROGRAM} is missing (make lm_eval-env)"
        pytest.skip("lm-eval is not set up (make lm_eval-env)")
    return str(PROGRAM)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with Launcher(TRAINED_TINY, ["--profile", "tiny"], command=COMMAND) as running:
        yield running.url + "/v1"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hub, and no cache of another run."""
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_OFFLINE", "1"), ("HF_HOME", str(tmp_path / "hf"))):
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_lm_eval_scores_the_served_model(server: str, program: str, tmp_path: Path, offline: None) -> None:
    write_task(tmp_path, QUESTIONS)
    out = tmp_path / "scores.json"
    arguments = ["--endpoint", server, "--lm-eval-program", program, "--lm-eval-task", NAME]
    result = invoke(*arguments, "--lm-eval-tasks", str(tmp_path), "--concurrency", "2", "--out", str(out), "--json")
    written = json.loads(out.read_text())
    assert json.loads(result.stdout) == written
    assert (written["model"], written["shots"]) == (TRAINED_TINY.name, 5)
    (score,) = written["scores"]
    assert (score["task"], score["metric"], score["filter"]) == (NAME, "exact_match", "strict-match")
    assert score["questions"] == QUESTIONS
    # A blind guess is right once in a thousand.
    assert score["value"] >= 0.8
    assert score["interval"]["low"] < score["value"] <= score["interval"]["high"]


@pytest.mark.slow
def test_a_data_set_that_cannot_be_had_is_named(server: str, program: str, offline: None) -> None:
    with pytest.raises(CommandError, match=r"--lm-eval-task gsm8k: lm-eval could not get its data set: .*HF_HOME"):
        invoke("--endpoint", server, "--lm-eval-program", program, "--limit", "1")


def test_without_lm_eval_the_way_to_it_is_said() -> None:
    with pytest.raises(
        CommandError, match=r"--lm-eval-program no-such-lm-eval: not found; pip install 'lm-eval\[api\]=="
    ):
        invoke("--lm-eval-program", "no-such-lm-eval")


def test_a_folder_of_tasks_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="accepted is a folder of lm-eval's task files"):
        invoke("--lm-eval-tasks", str(tmp_path / "nothing"))


def test_run_needs_lm_eval() -> None:
    with pytest.raises(UsageError, match="--run: accepted with --lm-eval"):
        CliRunner().invoke(app, ["eval", "--run"], standalone_mode=False, catch_exceptions=False)


def test_a_dead_endpoint_is_found_before_lm_eval_starts() -> None:
    with pytest.raises(
        CommandError, match=r"--endpoint http://127\.0\.0\.1:9/v1: no answer \(ConnectError.*is the server up"
    ):
        invoke("--endpoint", "http://127.0.0.1:9/v1", "--lm-eval-program", sys.executable)


def script(folder: Path, lines: str, status: int = 1) -> str:
    """An executable that prints lines and ends."""
    path = folder / "fails"
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\nexit {status}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host", "the server stopped answering"),
        ("ValueError: Tasks not found: nothing.", "lm-eval knows no such task"),
        ("Killed", "lm-eval failed: Killed"),
    ],
)
def test_a_failure_of_lm_eval_s_is_told_by_its_last_words(
    server: str, tmp_path: Path, lines: str, message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        invoke("--endpoint", server, "--lm-eval-program", script(tmp_path, lines))
    with pytest.raises(CommandError, match="wrote no results"):
        invoke("--endpoint", server, "--lm-eval-program", script(tmp_path, lines, status=0))
    with pytest.raises(UsageError, match=f"--served-model 'other': accepted is one of {TRAINED_TINY.name}"):
        invoke("--endpoint", server, "--served-model", "other", "--lm-eval-program", script(tmp_path, lines))


def test_the_command_is_gsm8k_with_five_shots_unless_told_otherwise() -> None:
    words = command("http://h/v1/", "m")
    assert words[:8] == ["lm_eval", "--model", "local-completions", "--tasks", "gsm8k", "--num_fewshot", "5", "--seed"]
    assert "base_url=http://h/v1/completions" in words[words.index("--model_args") + 1].split(",")
    local = command("http://h/v1", "m", LmEvalTask("t", 0, Path("/tasks"), 7), program="/bin/lm_eval")
    assert local[0] == "/bin/lm_eval"
    assert local[-4:] == ["--include_path", "/tasks", "--limit", "7"]


def test_results_without_a_score_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    file = tmp_path / "m" / "results_2026-01-01.json"
    file.write_text(json.dumps({"results": {"t": {"alias": "t"}}, "n-samples": {"t": {"effective": 3}}}))
    with pytest.raises(CommandError, match=r"lm-eval's results of t hold no score: \['alias'\]"):
        read_scores(tmp_path, "t")
    found = {"t": {"alias": "t", "acc,none": 0.5, "acc_stderr,none": "N/A"}}
    file.write_text(json.dumps({"results": found, "n-samples": {"t": {"effective": 4}}}))
    (score,) = read_scores(tmp_path, "t")
    assert (score.value, score.error, score.questions, score.interval.value) == (0.5, None, 4, 0.5)
