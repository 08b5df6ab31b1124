"""The benchmark of the front runs and reports; its figures are the machine's business, not a test's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dsv4_serve.profiles.load import REPOSITORY


@pytest.mark.slow
def test_it_reports_both_sides_of_every_row() -> None:
    command = [
        sys.executable,
        "tools/bench_launcher.py",
        "--seconds",
        "0.5",
        "--rounds",
        "1",
        "--rate",
        "200",
        "--json",
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert (done.returncode == 1) == bool(report["missed"])
    assert [row["streams"] for row in report["rows"]] == [1, 64]
    for row in report["rows"]:
        # The stand-in waits 20 ms before the first token: less would mean that something else was measured.
        assert min(row["direct_p50_ms"], row["front_p50_ms"]) >= 20
        assert row["front_tokens_s"] == pytest.approx(row["direct_tokens_s"] * row["throughput"])
