"""The chaos run in short: one round over host and disk with every kind of fault once. `make chaos` is the long form."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tools.chaos.run import FLIPS, REPOSITORY, Load, chaos

pytestmark = pytest.mark.slow
EVERY_FAULT = {"kill": 1, "pause": 1, "hang": 1, "corrupt": 1, "truncate": 1}


def test_nothing_is_wrong_lost_or_leaked_while_everything_fails() -> None:
    (found,) = chaos(Load(requests=160, at_once=16, faults=len(EVERY_FAULT), seed=3), FLIPS[1:2])
    assert found.verdict.details == []
    assert found.verdict.code == 0
    assert found.ledger.requests == 160
    assert found.ledger.ends["right"] > 80
    assert found.faults == EVERY_FAULT
    assert found.restarts == {"killed": 1, "hang": 1}


@pytest.mark.parametrize("command", ["run", "soak"])
def test_the_documented_commands_start(command: str) -> None:
    words = [sys.executable, "-m", f"tools.chaos.{command}", "--help"]
    found = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert f"python -m tools.chaos.{command}" in found.stdout
