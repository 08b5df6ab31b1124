"""Several machines of one model: launchers, processes of this machine, agree, disagree, and lose one another."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from dsv4_serve.supervisor import free_port
from serve.harness import Launcher, wait_until


class Machines:
    """Starts launchers that share an address."""

    def __init__(self, stack: ExitStack, model: Path, count: int) -> None:
        self._stack, self._model, self._count = stack, model, count
        self.port = free_port()

    def start(self, rank: int, environment: dict[str, str] | None = None, *options: str) -> Launcher:
        shared = {
            "DSV4_NODES": str(self._count),
            "DSV4_NODE_RANK": str(rank),
            "DSV4_NODE_ADDRESS": "127.0.0.1:20000",
            "DSV4_RANKS_PORT": str(self.port),
        }
        chosen = shared | (environment or {})
        return self._stack.enter_context(Launcher(self._model, options, environment=chosen, wait=False))


@pytest.fixture
def pair(model_dir: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(stack, model_dir, 2)


def reason(launcher: Launcher) -> str:
    return str(launcher.get("/readyz").json()["reason"])


def test_no_engine_starts_before_all_are_there_and_then_all_become_ready(pair: Machines) -> None:
    first = pair.start(0)
    wait_until(lambda: reason(first) == "waiting for rank 1", "rank 0 says whom it waits for")
    assert "starts as process" not in first.text
    second = pair.start(1)
    wait_until(first.ready, "rank 0 is ready")
    wait_until(second.ready, "rank 1 is ready")
    assert "all ranks are there and alike: 1 on " in first.text
    wait_until(lambda: 'dsv4_rank_up{rank="1"} 1.0' in first.get("/metrics").text, "the metrics tell")
    assert first.chat().status_code == 200


def test_rank_0_is_not_ready_before_the_others_are(pair: Machines) -> None:
    first = pair.start(0)
    second = pair.start(1, {"STANDIN_ARGS": '["--start-delay", "3"]'})
    wait_until(lambda: "rank 1 (" in reason(first), "rank 0 waits for rank 1")
    assert first.get("/readyz").status_code == 503
    wait_until(first.ready, "rank 0 is ready")
    assert second.ready()


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"DSV4_ROWGROUP": "0", "DSV4_ALLOW_FALLBACK": "1"}, "DSV4_ALLOW_FALLBACK: rank 0 has false, rank 1 ("),
        ({"DSV4_INDEXER_DTYPE": "bf16"}, 'DSV4_INDEXER_DTYPE: rank 0 has "fp4", rank 1 ('),
    ],
)
def test_machines_with_other_flags_refuse_each_other_before_an_engine_starts(
    pair: Machines, environment: dict[str, str], told: str
) -> None:
    first, second = pair.start(0), pair.start(1, environment)
    assert (first.exit_code(), second.exit_code()) == (3, 3)
    assert told in first.text
    assert told in second.text
    assert "starts as process" not in first.text + second.text


def test_machines_with_other_images_refuse_each_other(pair: Machines, tmp_path: Path) -> None:
    record = tmp_path / "image.json"
    record.write_text('{"id": "sha256:another"}')
    first, second = pair.start(0), pair.start(1, {"STANDIN_IMAGE_RECORD": str(record)})
    assert (first.exit_code(), second.exit_code()) == (3, 3)
    assert "image id: rank 0 has absent, rank 1 (" in first.text


def test_machines_with_other_models_refuse_each_other(pair: Machines, tmp_path: Path) -> None:
    other = tmp_path / "dsv4-tiny"
    other.mkdir()
    (other / "config.json").write_text('{"other": true}')
    first, second = pair.start(0), pair.start(1, None, "--model", str(other))
    assert (first.exit_code(), second.exit_code()) == (3, 3)
    assert "model config.json: rank 0 has " in second.text


def test_two_machines_with_one_rank_are_told_apart(pair: Machines) -> None:
    first, second = pair.start(0), pair.start(1)
    wait_until(first.ready, "rank 0 is ready")
    third = pair.start(1)
    assert third.exit_code() == 3
    assert "rank 1 is already there, on " in third.text
    assert first.ready()
    assert second.ready()


def test_a_lost_machine_ends_the_others(pair: Machines) -> None:
    """The engines are one group: what is left of it cannot serve, and who started the launchers starts all again."""
    first, second = pair.start(0), pair.start(1)
    wait_until(first.ready, "rank 0 is ready")
    second.signal(signal.SIGTERM)
    assert second.exit_code() == 0
    assert first.exit_code() == 1
    assert "rank 1 (" in first.text
    assert ") ended: " in first.text


def test_a_killed_rank_0_ends_the_others(pair: Machines) -> None:
    first, second = pair.start(0), pair.start(1)
    wait_until(first.ready, "rank 0 is ready")
    first.signal(signal.SIGKILL)
    first.exit_code()
    assert second.exit_code() == 1
    assert "rank 0 has not answered for 15 s (it was " in second.text


def test_who_does_not_bear_the_key_is_not_heard(pair: Machines, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a-shared-key\n")
    first = pair.start(0, {"DSV4_RANKS_KEY_FILE": str(key)})
    second = pair.start(1)
    assert second.exit_code() == 3
    assert "DSV4_RANKS_KEY_FILE must hold the same everywhere" in second.text
    assert "waiting for rank 1" in reason(first)
    assert "a-shared-key" not in first.text
    third = pair.start(1, {"DSV4_RANKS_KEY_FILE": str(key)})
    wait_until(first.ready, "rank 0 is ready")
    wait_until(third.ready, "rank 1 is ready")


def test_what_is_no_report_is_refused_with_its_fault(pair: Machines) -> None:
    first = pair.start(0)
    wait_until(lambda: reason(first) == "waiting for rank 1", "rank 0 listens for the others")
    for body in (b"", b"{", b"[]", b'{"token": "x"}', b"\xff" * 100):
        answer = httpx.post(f"http://127.0.0.1:{pair.port}/ranks/1", content=body, trust_env=False)
        assert answer.status_code == 422
        assert "not a report" in answer.json()["error"]
    assert reason(first) == "waiting for rank 1"
