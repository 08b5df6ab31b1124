"""`dsv4 serve` with vLLM's profile and adapter, whole, over a stand-in that is started by vLLM's command line and
speaks vLLM 0.33.0's routes: no vLLM runs here.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import pytest

import serve.standin_vllm
from serve.harness import COMMAND, Launcher, wait_until
from serve.streams import Stream

TESTS = Path(serve.standin_vllm.__file__).parents[1]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose `vllm`, beside its Python, is the stand-in."""
    program = tmp_path / "vllm"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={TESTS} exec {sys.executable} -m serve.standin_vllm "$@"\n')
    program.chmod(0o755)
    return {"DSV4_PROFILE": "vllm-v4-flash-tp8", "DSV4_ENGINE_PYTHON": str(tmp_path / "python")}


def start(model_dir: Path, environment: dict[str, str], options: list[str], standin: list[str]) -> Launcher:
    arguments = ["--no-preflight", *options]
    return Launcher(model_dir, arguments, standin, environment | {"DSV4_SELFTEST": "0"}, command=COMMAND)


def test_ready_once_it_generates_and_as_asked(model_dir: Path, environment: dict[str, str]) -> None:
    with start(model_dir, environment, [], ["--rate", "200"]) as launcher:
        assert re.search(r"--attention-config.*indexer_kv_dtype.*fp8", launcher.text)
        effective = launcher.engine_info()
        assert (effective["version"], effective["block_size"], effective["engines"]) == ("0.33.0", "256", 1)
        assert launcher.chat().status_code == 200
        assert "dsv4_generated_tokens_total" in launcher.get("/metrics").text


def test_it_refuses_lets_finish_settles_and_ends(model_dir: Path, environment: dict[str, str]) -> None:
    options = ["--leave-seconds", "0.5", "--settle-seconds", "1"]
    with start(model_dir, environment, options, ["--rate", "20", "--lag", "1.5"]) as launcher:
        stream = Stream(launcher, 60)
        launcher.signal(signal.SIGTERM)
        wait_until(lambda: launcher.get("/readyz").json()["state"] == "draining", "it drains")
        refused = launcher.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        stream.join()
        ended = time.monotonic()
        assert launcher.exit_code() == 0
        assert time.monotonic() - ended > 2
    assert stream.text.endswith("data: [DONE]\n\n")
    assert "cut" not in launcher.text


def test_what_it_still_counts_is_cut_by_name(model_dir: Path, environment: dict[str, str]) -> None:
    options = ["--settle-seconds", "1", "--drain-seconds", "0.5"]
    with start(model_dir, environment, options, ["--lag", "600"]) as launcher:
        assert launcher.chat().status_code == 200
        launcher.signal(signal.SIGTERM)
        assert launcher.exit_code() == 0
    assert "the engine still counts 1 requests; they are cut" in launcher.text
