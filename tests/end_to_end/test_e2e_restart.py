"""The real engine: killed, stopped, and with weights that can no longer be read."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from serve.harness import COMMAND, MODEL, Launcher, wait_until
from serve.streams import Stream

pytestmark = pytest.mark.slow
PROMPT = "".join(chr(97 + (i * i) % 26) for i in range(300))


def answer(launcher: Launcher) -> str:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
    found = launcher.http.post(launcher.url + "/v1/completions", json=body)
    assert found.status_code == 200, found.text
    return str(found.json()["choices"][0]["text"])


def wait_for_another(launcher: Launcher, than: int, what: str) -> None:
    """Until another engine than process `than` is ready: a killed one may be taken for ready until it is buried."""
    wait_until(lambda: launcher.engine_pid() != than and launcher.ready(), what)


def test_it_comes_back_from_a_kill_a_stop_and_lost_weights_with_the_same_answers(
    tiny_model: Path, tmp_path: Path
) -> None:
    model = tmp_path / tiny_model.name
    shutil.copytree(tiny_model, model)
    # More patience than a busy machine's first tokens need, and restarts to spare should it still look like a hang.
    options = ["--profile", "tiny", "--restart-delay", "0.5", "--stall-seconds", "20", "--max-restarts", "20"]
    with Launcher(model, options, command=COMMAND) as launcher:
        cold = answer(launcher)
        stream = Stream(launcher, 2000)
        killed = launcher.engine_pid()
        os.kill(killed, signal.SIGKILL)
        stream.join()
        assert '"code": "engine_lost"' in stream.text
        wait_for_another(launcher, killed, "back from the kill")
        assert answer(launcher) == cold

        stream = Stream(launcher, 2000)
        stopped = launcher.engine_pid()
        os.kill(stopped, signal.SIGSTOP)
        stream.join()
        assert "the engine hangs" in stream.text
        wait_for_another(launcher, stopped, "back from the stop")
        assert answer(launcher) == cold

        weights = next(model.glob("*.safetensors"))
        whole = weights.read_bytes()
        weights.write_bytes(whole[:1000])
        os.kill(launcher.engine_pid(), signal.SIGKILL)
        unreadable = 'dsv4_engine_restarts_total{cause="weights_unreadable"} 0.0'
        wait_until(lambda: unreadable not in launcher.get("/metrics").text, "the weights are found unreadable")
        assert "cannot be read as safetensors" in launcher.text
        weights.write_bytes(whole)
        wait_until(launcher.ready, "back with its weights")
        assert answer(launcher) == cold


def test_weights_that_cannot_be_read_are_a_failed_start_with_the_file(tiny_model: Path, tmp_path: Path) -> None:
    model = tmp_path / tiny_model.name
    shutil.copytree(tiny_model, model)
    weights = next(model.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with Launcher(model, ["--profile", "tiny"], command=COMMAND, wait=False) as launcher:
        assert launcher.exit_code() == 1
    assert f"{weights}: cannot be read as safetensors" in launcher.text
    assert "cause=weights_unreadable" in launcher.text
    assert "Traceback" not in launcher.text
