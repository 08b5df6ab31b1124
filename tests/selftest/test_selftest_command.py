"""`dsv4 selftest` as a command: its report, its JSON, its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.selftest.outcome import Outcome
from dsv4_serve.selftest.run import PROBES

Run = Callable[..., dict[str, Outcome]]


def selftest(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DSV4_")}
    command = [sys.executable, "-m", "dsv4_serve.cli", "selftest", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
def test_every_probe_on_the_trained_model() -> None:
    done = selftest("--profile", "tiny", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    status = {probe["probe"]: probe["status"] for probe in report["probes"]}
    assert list(status) == list(PROBES)
    assert {name for name, value in status.items() if value == "not run"} == {"needle-10k", "needle-80k"}
    assert {value for name, value in status.items() if not name.startswith("needle-")} == {"passed"}
    # Progress goes to the other stream, so that JSON stays alone.
    assert "passed    layout" in done.stderr


def test_untrained_weights_are_asked_for_logits(run: Run) -> None:
    found = run(("answer-50", "answer-700", "needle-2k", "needle-10k", "finite"), trained=False)
    assert {name: outcome.status for name, outcome in found.items()} == {
        "answer-50": "passed",
        "answer-700": "passed",
        "needle-2k": "passed",
        "needle-10k": "not run",
        "finite": "passed",
    }
    assert "tokens: logits are the reference's, largest difference 0.0e+00" in found["answer-700"].detail
    assert "10240 tokens exceed the context of 2048" in found["needle-10k"].detail


def test_a_failed_probe_is_exit_code_1(tmp_path: Path) -> None:
    """Weights that were never trained, served by a profile that says that they are."""
    write_tiny_model(tmp_path / "model")
    done = selftest("--profile", "tiny", "--model", str(tmp_path / "model"), "--probe", "answer-50")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed    answer-50" in done.stdout
    assert "0 passed, 1 failed, 0 not run" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--probe", "everything"), "--probe 'everything': accepted is one of layout, index, answer-50"),
        (("--profile", "v4-flash-tp4", "--probe", "score"), "--probe 'score': accepted is one of layout, index"),
    ],
)
def test_what_cannot_be_asked_is_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = selftest(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
