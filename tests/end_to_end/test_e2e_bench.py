"""`dsv4 bench serve` against the real engine: its figures hold against each other and against the server's counters."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from dsv4_serve.bench.report import change
from dsv4_serve.bench.summary import Percentiles
from dsv4_serve.bench.texts import Texts
from dsv4_serve.bench.workload import PRESETS, Workload
from dsv4_serve.errors import UsageError
from serve.harness import Launcher


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dsv4_serve.cli", "bench", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def runs(*options: str) -> list[dict[str, Any]]:
    done = bench(*options, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["runs"]
    return found


@pytest.mark.slow
def test_a_growing_conversation_hits_exactly_what_it_should(served: Launcher) -> None:
    options = ("--preset", "agentic-16", "--scale", "0.05", "--concurrency", "2", "--turns", "3", "--seed", "11")
    (row,) = runs("--url", served.url, *options)
    assert (row["requests"], row["concurrency"]) == (6, 2)
    assert row["output_tokens"] == round(256 * 0.05)
    # Its first turn brings the shared part; one client may have it before the other.
    assert row["hit_expected"] == pytest.approx(row["hit_measured"], abs=0.1)
    assert row["hit_measured"] == pytest.approx(row["hit_gpu"], abs=1e-9)
    assert row["hit_measured"] > 0.4
    assert row["capacity_tokens"] == 65536
    assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"] <= row["latency_ms"]["p99"]
    total = row["requests"] * (row["prompt_tokens"] + row["output_tokens"])
    assert row["tokens_per_second_gpu"] == pytest.approx(total / row["seconds"])


@pytest.mark.slow
def test_unique_prompts_never_hit_and_gpus_divide(served: Launcher) -> None:
    options = ("--preset", "8k-1k", "--scale", "0.05", "--concurrency", "1", "--conversations", "2")
    (row,) = runs("--url", served.url, *options, "--gpus", "4", "--seed", "12")
    assert (row["hit_expected"], row["hit_measured"], row["hit_gpu"]) == (0, 0, 0)
    total = row["requests"] * (row["prompt_tokens"] + row["output_tokens"])
    assert row["tokens_per_second_gpu"] == pytest.approx(total / row["seconds"] / 4)


@pytest.mark.slow
def test_a_long_run_tells_how_far_it_is(served: Launcher) -> None:
    """Two prompts of 2,458 tokens and answers of 307 take longer than the time between two lines."""
    options = ("--preset", "8k-1k", "--scale", "0.3", "--concurrency", "1", "--conversations", "2", "--seed", "13")
    done = bench("--url", served.url, *options)
    assert done.returncode == 0, done.stderr
    assert " of 2 requests\n" in done.stderr


@pytest.mark.slow
def test_fp8_against_fp4_side_by_side() -> None:
    """It starts both sides itself and takes turns."""
    done = bench("--ab", "--preset", "8k-1k", "--scale", "0.01", "--concurrency", "1", "--conversations", "1")
    assert done.returncode == 0, done.stderr
    assert "8k-1k, 1 streams: fp8 against fp4" in done.stdout
    for figure in ("tok/s per GPU", "TTFT p50, ms", "TPOT p50, ms", "KV capacity, tokens", "GPU hit rate"):
        assert f"| {figure} " in done.stdout


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--url", "http://127.0.0.1:9"), 1, "http://127.0.0.1:9/v1/models: ConnectError"),
        (("--preset", "64k"), 2, "--preset '64k': accepted is one of 68k-200, 8k-1k"),
        (("--ab", "--against", "http://127.0.0.1:9"), 2, "accepted is one of --ab and --against"),
        (("--concurrency", "-1"), 2, "concurrency (-1,): accepted is one or more numbers from 1 on"),
    ],
)
def test_what_cannot_be_measured_is_told(options: tuple[str, ...], code: int, message: str) -> None:
    done = bench(*options)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_percentiles_are_values_that_occurred() -> None:
    assert Percentiles.of([0.001 * n for n in range(1, 101)]) == pytest.approx(Percentiles(50, 90, 99), abs=1e-6)
    assert Percentiles.of([0.2]) == Percentiles(200, 200, 200)
    with pytest.raises(ValueError, match="of nothing"):
        Percentiles.of([])


def test_a_change_within_the_spread_is_neutral() -> None:
    assert change([100, 110, 105], [108, 111, 107]) == "neutral (+2.9 %)"
    assert change([100, 101, 102], [150, 151, 152]) == "+49.5 %"
    assert change([5], [5]) == "same"
    assert change([100], [110]) == "+10.0 %"
    assert change([], [1]) == "–"


def test_presets_and_their_scale() -> None:
    assert set(PRESETS) == {"68k-200", "8k-1k", "shared", "agentic-16", "agentic-48-hicache"}
    assert PRESETS["8k-1k"].concurrency == (1, 4, 16, 64)
    agentic = PRESETS["agentic-16"]
    assert agentic.longest == 16_384 + 15 * (1_024 + 256) + 256
    tenth = agentic.scaled(0.1)
    assert (tenth.prompt_tokens, tenth.growth_tokens, tenth.shared_tokens, tenth.turns) == (1638, 102, 819, 16)
    with pytest.raises(UsageError, match="output_tokens 1: accepted is 2 or more"):
        Workload("w", 10, 1, (1,))


def test_texts_are_of_their_seed_and_length() -> None:
    one = Texts(3, 2.5)
    assert one.of(100) == Texts(3, 2.5).of(100) != one.of(100)
    assert len(Texts(1, 2.5).of(100).split()) == 40
    assert Texts(1, 2.5).of(0) == ""
