"""Start, readiness, death, drain and the end of a server, with real processes and signals."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from dsv4_serve.lifecycle import Lifecycle
from serve.harness import Launcher, wait_until
from serve.streams import Stream


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_until_ready_it_lives_explains_itself_and_refuses(model_dir: Path) -> None:
    with Launcher(model_dir, standin=["--start-delay", "1.5"], wait=False) as launcher:
        assert launcher.get("/livez").status_code == 200
        not_yet = launcher.get("/readyz")
        assert (not_yet.status_code, not_yet.json()["state"]) == (503, "starting")
        assert "the engine is starting" in not_yet.json()["reason"]
        startup = launcher.get("/startupz")
        assert (startup.status_code, startup.json()["running_phase"]["name"]) == (503, "engine_boot")
        refused = launcher.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert int(refused.headers["retry-after"]) > 0
        assert launcher.get("/v1/models").status_code == 503
        assert "dsv4_kv_capacity_tokens" not in launcher.get("/metrics").text
        assert "dsv4_engine_up 0.0" in launcher.get("/metrics").text
        assert launcher.get("/manifest").json()["engine"]["effective"] is None

        wait_until(launcher.ready, "ready")
        startup = launcher.get("/startupz")
        assert startup.status_code == 200
        phases = {phase["name"]: phase for phase in startup.json()["phases"]}
        assert phases["engine_boot"]["seconds"] > 1
        assert phases["weights"] == {"name": "weights", "seconds": 0.25, "source": "engine"}
        assert list(phases) == ["engine_boot", "first_generation", "weights", "pools"]
        assert 'dsv4_startup_phase_seconds{phase="weights"} 0.25' in launcher.get("/metrics").text
        assert "dsv4_engine_up 1.0" in launcher.get("/metrics").text


def test_a_self_test_that_fails_is_a_failed_start_where_one_is_asked_for(model_dir: Path) -> None:
    """The stand-in's answers are all the same words. Nobody asks in the tests around this one."""
    with Launcher(model_dir, ["--selftest"], wait=False) as launcher:
        assert launcher.exit_code() == 1
    assert "the self-test failed: answer-50: record 0 of" in launcher.text


NO_GENERATION = "the engine has not answered a generation yet: POST /v1/completions: 503"


def test_health_alone_does_not_make_it_ready(model_dir: Path) -> None:
    with Launcher(model_dir, ["--startup-seconds", "2"], ["--never-ready"], wait=False) as launcher:
        wait_until(lambda: launcher.get("/startupz").json()["running_phase"]["name"] == "first_generation", "healthy")
        assert launcher.get("/readyz").status_code == 503
        wait_until(lambda: NO_GENERATION in launcher.get("/readyz").json()["reason"], "it says what is missing")
        assert launcher.exit_code() == 1
    assert "not ready after 2 s: POST /v1/completions: 503" in launcher.text
    assert "Traceback" not in launcher.text


@pytest.mark.slow
def test_why_a_first_generation_does_not_come_is_told_while_it_is_waited_for(model_dir: Path) -> None:
    """Weights that give NaN were asked for half an hour, and nobody said why."""
    with Launcher(model_dir, ["--startup-seconds", "7"], ["--never-ready"], wait=False) as launcher:
        assert launcher.exit_code() == 1
    assert any(NO_GENERATION in line and line.endswith("s)") for line in launcher.log)


def test_an_engine_that_runs_something_else_is_a_failed_start(model_dir: Path) -> None:
    with Launcher(model_dir, ["--indexer-dtype", "fp8"], ["--indexer-dtype", "fp4"], wait=False) as launcher:
        assert launcher.exit_code() == 1
    assert "does not run what was asked for: indexer_dtype: asked was fp8, in effect is fp4" in launcher.text


def test_an_engine_that_cannot_start_ends_the_server_with_its_reason(model_dir: Path) -> None:
    with Launcher(model_dir, standin=["--crash-at-start"], wait=False) as launcher:
        assert launcher.exit_code() == 1
    assert "engine | standin: out of memory: 3 bytes short" in launcher.log
    assert "the engine exited with code 9: standin: out of memory: 3 bytes short cause=device_memory" in launcher.text


def test_the_engines_death_is_told_to_streams_and_ends_a_server_that_may_not_restart_it(model_dir: Path) -> None:
    with Launcher(model_dir, ["--max-restarts", "0"]) as launcher:
        stream = Stream(launcher, 100_000)
        os.kill(launcher.engine_pid(), signal.SIGKILL)
        assert launcher.exit_code() == 1
        stream.join()
    assert '"code": "engine_lost"' in stream.text
    assert "the engine was killed by SIGKILL" in launcher.text


def test_sigterm_lets_streams_finish_refuses_new_ones_and_exits_0(model_dir: Path) -> None:
    with Launcher(model_dir, standin=["--rate", "20"]) as launcher:
        stream = Stream(launcher, 30)
        pid = launcher.engine_pid()
        launcher.signal(signal.SIGTERM)
        wait_until(lambda: launcher.get("/readyz").status_code == 503, "draining")
        assert launcher.get("/readyz").json()["state"] == "draining"
        assert launcher.get("/livez").status_code == 200
        refused = launcher.chat()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        stream.join()
        assert launcher.exit_code() == 0
    assert stream.text.count("data: {") == 30
    assert stream.text.endswith("data: [DONE]\n\n")
    assert not alive(pid)


def test_a_drain_has_a_limit(model_dir: Path) -> None:
    with Launcher(model_dir, ["--drain-seconds", "0.5"]) as launcher:
        stream = Stream(launcher, 100_000)
        launcher.signal(signal.SIGTERM)
        assert launcher.exit_code() == 0
        stream.join()
    assert "1 requests were cut" in launcher.text
    assert '"code": "engine_lost"' in stream.text


def test_a_second_signal_ends_it_at_once(model_dir: Path) -> None:
    with Launcher(model_dir, ["--drain-seconds", "600"], ["--ignore-sigterm"]) as launcher:
        stream = Stream(launcher, 100_000)
        pid = launcher.engine_pid()
        launcher.signal(signal.SIGINT)
        wait_until(lambda: "SIGINT: no new requests" in launcher.text, "the first signal was seen")
        launcher.signal(signal.SIGINT)
        assert launcher.exit_code() == 1
        stream.join()
    assert not alive(pid)


def test_an_idle_server_stops_on_sigint(model_dir: Path) -> None:
    with Launcher(model_dir) as launcher:
        launcher.signal(signal.SIGINT)
        assert launcher.exit_code() == 0
    assert "stopped" in launcher.log[-1]


def test_the_engine_does_not_outlive_a_killed_launcher(model_dir: Path) -> None:
    with Launcher(model_dir) as launcher:
        pid = launcher.engine_pid()
        assert alive(pid)
        launcher.signal(signal.SIGKILL)
        launcher.exit_code()
        wait_until(lambda: not alive(pid), "the engine ended with its launcher")


def test_a_taken_port_is_a_preflight_failure(model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Launcher(model_dir, ["--port", str(port)], wait=False) as launcher:
            assert launcher.exit_code() == 3
    assert re.search(rf"cannot listen on 127.0.0.1:{port}: .*; --port picks another", launcher.text)
    assert "Traceback" not in launcher.text


def test_states_only_move_forward() -> None:
    clock = iter([0.0, 1.0, 3.0, 3.0, 10.0, 10.0, 11.0]).__next__
    lifecycle = Lifecycle(clock)
    lifecycle.begin("engine_boot", "starting")
    lifecycle.begin("first_generation", "no generation yet")
    assert [(phase.name, phase.seconds) for phase in lifecycle.phases()] == [("engine_boot", 2.0)]
    lifecycle.set_ready()
    lifecycle.set_unhealthy("no answer")
    assert (lifecycle.ready, lifecycle.reason) == (False, "no answer")
    lifecycle.set_healthy()
    assert lifecycle.ready
    lifecycle.set_draining()
    lifecycle.set_healthy()
    lifecycle.set_ready()
    assert lifecycle.state == "draining"
    lifecycle.set_dead("killed")
    lifecycle.set_draining()
    assert (lifecycle.state, lifecycle.reason) == ("dead", "killed")


def test_a_lost_engine_ends_readiness_and_a_server_that_leaves_drains() -> None:
    lifecycle = Lifecycle()
    lifecycle.lose_engine("it was killed")
    assert lifecycle.state == "starting"
    lifecycle.set_ready()
    lifecycle.lose_engine("it was killed")
    assert (lifecycle.state, lifecycle.reason, lifecycle.takes_requests) == ("unhealthy", "it was killed", False)
    lifecycle.set_restarting("another is started")
    lifecycle.lose_engine("it was killed")
    assert (lifecycle.state, lifecycle.reason) == ("restarting", "another is started")
    lifecycle.set_ready()
    lifecycle.set_leaving()
    assert lifecycle.takes_requests
    lifecycle.lose_engine("it was killed")
    assert (lifecycle.state, lifecycle.takes_requests) == ("draining", False)
    assert lifecycle.reason == "the server is shutting down, and it was killed"
