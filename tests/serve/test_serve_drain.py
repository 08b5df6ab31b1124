"""Shutdown step by step: the server leaves, refuses, lets finish, settles, stops its engine, and tells what it cut."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from serve.harness import Launcher, wait_until
from serve.streams import Stream


def state(launcher: Launcher) -> str:
    return str(launcher.get("/readyz").json()["state"])


def test_a_leaving_server_is_not_ready_and_still_serves(model_dir: Path) -> None:
    """Who balances load hears of it a moment later: until then requests come, and must not fail."""
    with Launcher(model_dir, ["--leave-seconds", "600"]) as launcher:
        launcher.signal(signal.SIGTERM)
        wait_until(lambda: state(launcher) == "leaving", "it leaves")
        assert launcher.get("/readyz").status_code == 503
        assert launcher.chat().status_code == 200
        assert launcher.get("/v1/models").status_code == 200
        assert "dsv4_engine_up 0.0" in launcher.get("/metrics").text
        launcher.signal(signal.SIGTERM)
        assert launcher.exit_code() == 1


def test_then_it_refuses_lets_finish_and_ends(model_dir: Path) -> None:
    with Launcher(model_dir, ["--leave-seconds", "0.5"], ["--rate", "20"]) as launcher:
        stream = Stream(launcher, 60)
        launcher.signal(signal.SIGTERM)
        wait_until(lambda: state(launcher) == "draining", "it drains")
        refused = launcher.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        stream.join()
        assert launcher.exit_code() == 0
    assert stream.text.endswith("data: [DONE]\n\n")
    assert "cut" not in launcher.text


def test_it_waits_until_the_engine_has_counted_nothing_for_a_while(model_dir: Path) -> None:
    """The engine's count lags: it says that it is busy for a second after the last answer."""
    with Launcher(model_dir, ["--settle-seconds", "1"], ["--lag", "1.5"]) as launcher:
        assert launcher.chat().status_code == 200
        begun = time.monotonic()
        launcher.signal(signal.SIGTERM)
        assert launcher.exit_code() == 0
        assert time.monotonic() - begun > 2
    assert "cut" not in launcher.text


def test_an_engine_that_never_settles_is_ended_all_the_same(model_dir: Path) -> None:
    options = ["--settle-seconds", "1", "--drain-seconds", "0.5"]
    with Launcher(model_dir, options, ["--lag", "600"]) as launcher:
        assert launcher.chat().status_code == 200
        launcher.signal(signal.SIGTERM)
        assert launcher.exit_code() == 0
    assert "the engine still counts 1 requests; they are cut" in launcher.text


def test_what_was_cut_is_named(model_dir: Path) -> None:
    with Launcher(model_dir, ["--drain-seconds", "0.5"]) as launcher:
        stream = Stream(launcher, 100_000)
        launcher.signal(signal.SIGTERM)
        assert launcher.exit_code() == 0
        stream.join()
    assert re.search(r"cut id=req-[0-9a-f]{16} seconds=\d+\.\d bytes=\d+", launcher.text)
    assert "1 requests were cut" in launcher.text


def test_a_person_at_the_terminal_does_not_wait_for_load_balancers(model_dir: Path) -> None:
    options = ["--leave-seconds", "600", "--settle-seconds", "600"]
    with Launcher(model_dir, options) as launcher:
        launcher.signal(signal.SIGINT)
        assert launcher.exit_code() == 0
