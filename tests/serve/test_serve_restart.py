"""An engine that stops serving, in every way that it can: what the server says, counts and does. Real processes."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.failure import CAUSES, of_death
from dsv4_serve.oom_kills import OomKills
from dsv4_serve.progress import Progress
from dsv4_serve.restart_policy import RestartPolicy, Restarts
from dsv4_serve.supervisor import Death
from serve.harness import Launcher, chat_body, wait_until
from serve.memory_cgroup import limited_memory
from serve.streams import Stream

QUICK = ["--restart-delay", "0.05"]


def restarts(launcher: Launcher) -> dict[str, int]:
    """Counted restarts by cause; those that never happened left out."""
    text = launcher.get("/metrics").text
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    found = {s.labels["cause"]: int(s.value) for s in samples if s.name == "dsv4_engine_restarts_total"}
    assert set(found) == set(CAUSES)
    return {cause: count for cause, count in found.items() if count}


def wait_for_restart(launcher: Launcher, cause: str, count: int = 1) -> None:
    wait_until(lambda: restarts(launcher).get(cause, 0) >= count, f"restart {count} because of {cause}")
    wait_until(launcher.ready, "it serves again")


def test_a_killed_engine_is_started_again_and_nothing_is_lost_in_silence(model_dir: Path) -> None:
    with Launcher(model_dir, QUICK) as launcher:
        first = launcher.engine_pid()
        stream = Stream(launcher, 100_000)
        os.kill(first, signal.SIGKILL)
        wait_for_restart(launcher, "killed")
        stream.join()
        assert '"code": "engine_lost"' in stream.text
        assert launcher.engine_pid() != first
        assert launcher.chat().status_code == 200
        assert launcher.get("/startupz").json()["state"] == "ready"
    assert "the engine was killed by SIGKILL" in launcher.text
    assert "it is started again cause=killed" in launcher.text


def test_while_it_restarts_requests_are_told_to_come_back(model_dir: Path) -> None:
    with Launcher(model_dir, ["--restart-delay", "30"]) as launcher:
        os.kill(launcher.engine_pid(), signal.SIGKILL)
        wait_until(lambda: launcher.get("/readyz").json()["state"] == "restarting", "it waits to restart")
        answer = launcher.get("/readyz")
        assert answer.status_code == 503
        assert "is started again, because the engine was killed by SIGKILL" in answer.json()["reason"]
        assert launcher.get("/livez").status_code == 200
        refused = launcher.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert int(refused.headers["retry-after"]) > 0
        launcher.signal(signal.SIGTERM)
        assert launcher.exit_code() == 0


def test_a_crash_on_a_request_ends_that_request_and_restarts(model_dir: Path) -> None:
    with Launcher(model_dir, QUICK) as launcher:
        lost = launcher.chat("standin:die")
        assert (lost.status_code, lost.json()["error"]["code"]) == (502, "engine_lost")
        wait_for_restart(launcher, "crash")
        assert launcher.chat().status_code == 200
    assert "the engine exited with code 13" in launcher.text


def test_restarts_in_a_row_have_a_limit(model_dir: Path, tmp_path: Path) -> None:
    later = tmp_path / "options"
    with Launcher(
        model_dir, [*QUICK, "--max-restarts", "2"], environment={"STANDIN_NEXT_ARGS": str(later)}
    ) as launcher:
        later.write_text(json.dumps(["--crash-at-start"]))
        os.kill(launcher.engine_pid(), signal.SIGKILL)
        assert launcher.exit_code() == 1
    assert "restart=1/2" in launcher.text
    assert "restart=2/2" in launcher.text
    assert "3 bytes short; it was started 2 times again, no more cause=device_memory" in launcher.text
    assert "Traceback" not in launcher.text


def test_an_engine_that_answers_nothing_is_a_hang(model_dir: Path) -> None:
    with Launcher(model_dir, [*QUICK, "--stall-seconds", "1.5"]) as launcher:
        stream = Stream(launcher, 100_000)
        os.kill(launcher.engine_pid(), signal.SIGSTOP)
        wait_until(lambda: launcher.get("/readyz").json()["state"] == "unhealthy", "it is seen not to answer")
        wait_for_restart(launcher, "hang")
        stream.join()
        assert "the engine hangs: it has not answered for" in stream.text
        assert launcher.chat().status_code == 200


def test_an_engine_that_answers_and_does_no_work_is_a_hang(model_dir: Path) -> None:
    with Launcher(model_dir, [*QUICK, "--stall-seconds", "1"]) as launcher:
        lost = launcher.chat("standin:stuck")
        assert lost.status_code == 502
        assert "1 requests in it, and none of its counters moved" in lost.json()["error"]["message"]
        wait_for_restart(launcher, "hang")


def test_one_request_without_an_answer_is_no_hang_of_an_engine_that_generates(model_dir: Path) -> None:
    """No counter moves for it, so a token is asked for, and comes: the others are not cut off for its sake."""
    with Launcher(model_dir, [*QUICK, "--stall-seconds", "3", "--idle-seconds", "7"]) as launcher:
        lost = launcher.chat("standin:hang")
        assert (lost.status_code, lost.json()["error"]["code"]) == (504, "request_timeout")
        assert restarts(launcher) == {}
    assert re.search(r"no counter of the engine moved for \d s, but it generates", launcher.text)


def test_a_slow_engine_that_moves_is_no_hang(model_dir: Path) -> None:
    with Launcher(model_dir, [*QUICK, "--stall-seconds", "1"], ["--rate", "2"]) as launcher:
        assert launcher.chat(max_tokens=6, stream=True).status_code == 200
        assert restarts(launcher) == {}


def test_a_port_that_another_process_took_costs_another_try_and_no_more(model_dir: Path) -> None:
    with Launcher(model_dir, ["--max-restarts", "0"], environment={"STANDIN_TAKE_PORTS": "2"}) as launcher:
        assert restarts(launcher) == {"port_in_use": 2}
        assert launcher.chat().status_code == 200
    assert "address already in use" in launcher.text


def test_a_full_disk_is_named_and_tried_again(model_dir: Path, tmp_path: Path) -> None:
    """/dev/full refuses every byte, as a full disk does."""
    later = tmp_path / "options"
    with Launcher(model_dir, QUICK, environment={"STANDIN_NEXT_ARGS": str(later)}) as launcher:
        later.write_text(json.dumps(["--write-at-start", "/dev/full"]))
        os.kill(launcher.engine_pid(), signal.SIGKILL)
        wait_until(lambda: restarts(launcher).get("disk_full", 0) >= 1, "the disk is found full")
        assert "No space left on device" in launcher.get("/readyz").json()["reason"]
        later.unlink()
        wait_until(launcher.ready, "it serves again")


def test_a_slow_start_is_given_up_and_tried_again(model_dir: Path, tmp_path: Path) -> None:
    later = tmp_path / "options"
    options = [*QUICK, "--startup-seconds", "5"]
    with Launcher(model_dir, options, environment={"STANDIN_NEXT_ARGS": str(later)}) as launcher:
        later.write_text(json.dumps(["--start-delay", "600"]))
        os.kill(launcher.engine_pid(), signal.SIGKILL)
        wait_until(lambda: launcher.text.count("starts as process") == 2, "the slow one is started")
        later.unlink()
        wait_for_restart(launcher, "slow_start")
    assert "the engine did not start in time" in launcher.text


def test_the_kernels_memory_killer_takes_the_engine_and_is_named(model_dir: Path) -> None:
    with limited_memory(384 << 20) as enter, Launcher(model_dir, QUICK, before=enter) as launcher:
        lost = launcher.http.post(launcher.url + "/v1/chat/completions", json=chat_body("standin:eat"))
        assert (lost.status_code, lost.json()["error"]["code"]) == (502, "engine_lost")
        wait_for_restart(launcher, "out_of_memory")
        assert launcher.chat().status_code == 200
    assert "the kernel's out-of-memory killer ended it" in launcher.text


@pytest.mark.parametrize(
    ("tail", "cause"),
    [
        ("OSError: [Errno 98] Address already in use", "port_in_use"),
        ("error: --port 8010 on 127.0.0.1: Address already in use", "port_in_use"),
        ("OSError: [Errno 28] No space left on device: '/cache/x'", "disk_full"),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", "device_memory"),
        ("cannot start: /m/model.safetensors: cannot be read as safetensors (header too large)", "weights_unreadable"),
        ("safetensors_rust.SafetensorError: Error while deserializing header", "weights_unreadable"),
        ("AssertionError: 3 != 4", "crash"),
    ],
)
def test_the_last_words_of_an_engine_name_the_cause(tail: str, cause: str) -> None:
    found = of_death(Death(1, ("loading", tail, "cleaning up")), killed_for_memory=False)
    assert found.cause == cause
    assert cause == "crash" or tail in found.reason


def test_delays_double_up_to_the_longest_and_a_settled_engine_begins_anew() -> None:
    rows = Restarts(RestartPolicy(limit=4, first_delay=1, longest_delay=3, settled_seconds=100))
    assert [rows.next_delay(0) for _ in range(5)] == [1, 2, 3, 3, None]
    assert rows.next_delay(99) is None
    assert [rows.next_delay(100), rows.next_delay(5)] == [1, 2]


def test_progress_needs_work_and_movement() -> None:
    now = 0.0
    progress = Progress(lambda: now)
    now = 5.0
    progress.idle()
    progress.working(2, (1.0, 7.0))
    now = 8.0
    assert progress.still == 3
    progress.working(2, (1.0, 7.0))
    assert (progress.still, progress.requests) == (3, 2)
    progress.working(1, (1.0, 8.0))
    assert progress.still == 0


def test_memory_kills_are_counted_in_the_cgroup_of_either_version(tmp_path: Path) -> None:
    def write(place: str, text: str) -> None:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)

    write("proc/vmstat", "nr_free_pages 5\noom_kill 9\n")
    machine = OomKills(7, tmp_path)
    write("proc/7/cgroup", "0::/box\n")
    write("sys/fs/cgroup/box/memory.events", "low 0\noom 3\noom_kill 2\n")
    second = OomKills(7, tmp_path)
    write("proc/7/cgroup", "4:memory:/box\n0::/\n")
    write("sys/fs/cgroup/memory/box/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    first = OomKills(7, tmp_path)
    assert (machine.since, second.since, first.since) == (0, 0, 0)
    # The process is gone, and with it its entry; its cgroup is not.
    (tmp_path / "proc/7/cgroup").unlink()
    write("sys/fs/cgroup/box/memory.events", "low 0\noom 4\noom_kill 3\n")
    assert (machine.since, second.since, first.since) == (0, 1, 0)


def test_a_kernel_that_does_not_count_has_killed_nothing(tmp_path: Path) -> None:
    assert OomKills(7, tmp_path).since == 0
