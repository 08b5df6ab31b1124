"""Between an engine's end and the start of the next: nothing is sent to it, nobody waits for it, every route agrees."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsv4_serve.openai_errors import RETRY_SECONDS
from serve.harness import Launcher, wait_until
from serve.streams import Stream

# Longer than any of these tests: what must not wait for the next engine fails if it does.
NO_RESTART_YET = ["--restart-delay", "120"]
TOLD_SECONDS = 30.0


def refusal(launcher: Launcher) -> str:
    """The state that health, readiness, the list of models and a request agree on; AssertionError if one does not."""
    before = launcher.get("/readyz").json()["state"]
    answer = launcher.chat(max_tokens=1)
    models, health = launcher.get("/v1/models"), launcher.get("/health")
    state = str(launcher.get("/readyz").json()["state"])
    assert (answer.status_code, models.status_code, health.status_code) == (503, 503, 503)
    assert answer.json()["error"]["code"] == models.json()["error"]["code"] == "not_ready"
    if before == state:
        assert f"the server is {state}: " in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) == RETRY_SECONDS[state]
        assert health.json() == {"status": state}
    return state


def test_an_engine_that_is_gone_gets_nothing_though_its_sockets_are_open(model_dir: Path) -> None:
    """A child outside its group holds the port, the connections and the output: the kernel goes on accepting."""
    with Launcher(model_dir, NO_RESTART_YET) as launcher, ThreadPoolExecutor() as pool:
        stream = Stream(launcher, 100_000)
        lost = pool.submit(launcher.chat, "standin:orphan")
        wait_until(lambda: launcher.get("/readyz").status_code == 503, "the launcher knows")
        reason = launcher.get("/readyz").json()["reason"]
        assert "the engine exited with code 13" in reason
        while refusal(launcher) != "restarting":
            continue
        answer = lost.result(TOLD_SECONDS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_lost")
        assert "the engine exited with code 13" in answer.json()["error"]["message"]
        stream.join()
        assert '"code": "engine_lost"' in stream.text.split("\n\n")[-2]


def test_an_engine_that_stops_listening_finishes_what_it_has_and_gets_nothing_more(model_dir: Path) -> None:
    """SIGTERM from somebody else: it refuses connections for as long as a stream runs."""
    with Launcher(model_dir, ["--restart-delay", "0.05"], ["--rate", "5"]) as launcher:
        first, stream = launcher.engine_pid(), Stream(launcher, 20)
        os.kill(first, signal.SIGTERM)
        statuses = set()
        while 503 not in statuses:
            statuses.add(launcher.chat(max_tokens=1).status_code)
        assert statuses <= {200, 503}
        assert refusal(launcher) == "unhealthy"
        assert "takes no connections any more" in launcher.get("/readyz").json()["reason"]
        stream.join()
        assert stream.text.endswith("data: [DONE]\n\n")
        wait_until(lambda: launcher.engine_pid() != first and launcher.ready(), "another one serves")
        assert launcher.chat(max_tokens=1).status_code == 200


def test_an_engine_that_is_stopped_with_its_server_makes_it_drain(model_dir: Path) -> None:
    """Whoever ends both at once: the server would still take requests, and has nobody to give them to."""
    with Launcher(model_dir, ["--leave-seconds", "60"], ["--rate", "5"]) as launcher:
        stream = Stream(launcher, 20)
        launcher.signal(signal.SIGTERM)
        wait_until(lambda: launcher.get("/readyz").json()["state"] == "leaving", "it leaves")
        assert launcher.get("/health").status_code == 200
        os.kill(launcher.engine_pid(), signal.SIGTERM)
        wait_until(lambda: launcher.chat(max_tokens=1).status_code == 503, "a request is refused")
        assert refusal(launcher) == "draining"
        stream.join()
        assert stream.text.endswith("data: [DONE]\n\n")
