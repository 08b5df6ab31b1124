"""The chaos run in short: one round over host and disk with every kind of fault once. `make chaos` is the long form."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tools.chaos.leaks import Held, leaks
from tools.chaos.ledger import Ledger
from tools.chaos.run import FLIPS, REPOSITORY, Load, chaos

pytestmark = pytest.mark.slow
EVERY_FAULT = {"kill": 1, "pause": 1, "hang": 1, "corrupt": 1, "truncate": 1}


def test_nothing_is_wrong_lost_or_leaked_while_everything_fails() -> None:
    (found,) = chaos(Load(requests=160, at_once=16, faults=len(EVERY_FAULT), seed=3), FLIPS[1:2])
    assert found.problems == []
    assert found.ledger.requests == 160
    assert found.ledger.ends["right"] > 80
    assert found.faults == EVERY_FAULT
    assert found.restarts == {"killed": 1, "hang": 1}


def test_a_wrong_answer_a_loss_and_a_leak_are_found() -> None:
    ledger = Ledger()
    for end in ("right", "cancelled", "told", "wrong", "lost"):
        ledger.note(end, "detail")
    assert ledger.findings == ["wrong: detail", "lost: detail"]
    assert ledger.requests == 5
    quiet = Held(0, 11, 18, 20, 64 << 20, 500 << 20)
    assert leaks(quiet, quiet) == []
    assert leaks(quiet, Held(256, 20, 40, 30, 120 << 20, 700 << 20)) == [
        "256 tokens of pages are held by no request",
        "tasks: 9 more than before, allowed 2",
        "descriptors: 22 more than before, allowed 4",
        "engine_descriptors: 10 more than before, allowed 4",
        f"launcher_bytes: {56 << 20} more than before, allowed {24 << 20}",
    ]


@pytest.mark.parametrize("command", ["run", "soak"])
def test_the_documented_commands_start(command: str) -> None:
    words = [sys.executable, "-m", f"tools.chaos.{command}", "--help"]
    found = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert f"python -m tools.chaos.{command}" in found.stdout
