"""`dsv4 weights pull | verify` against a hub that runs here."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4_serve.weights.record import NAME, Record
from serve.standin_hub import Hub

OLD, NEW = "a" * 40, "b" * 40
REPOSITORY = "deepseek-ai/DeepSeek-V4-Pro"
SHARD = random.Random(0).randbytes(300_000)
FILES = {"config.json": b'{"a": 1}', "tokenizer.json": b"{}", "model.safetensors": SHARD, "encoding/x.py": b"# x\n"}


@pytest.fixture
def hub() -> Iterator[tuple[Hub, str]]:
    made = Hub(REPOSITORY, {OLD: dict(FILES), NEW: {**FILES, "config.json": b'{"a": 2}'}}, {"main": NEW, "v1": OLD})
    server, address = made.serve()
    yield made, address
    server.shutdown()
    server.server_close()


def weights(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads the environment once, when it is imported."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("DSV4_", "HF_"))}
    return subprocess.run(
        [sys.executable, "-m", "dsv4_serve.cli", "weights", *words, "--profile", "v4-pro-tp8"],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def pull(address: str, directory: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    home = {"HF_HOME": str(directory.parent / "home")}
    return weights("pull", "--directory", str(directory), "--endpoint", address, *words, **home, **environment)


def test_pull_fetches_a_commit_records_and_verifies_it(hub: tuple[Hub, str], tmp_path: Path) -> None:
    made, address = hub
    target = tmp_path / "model"
    done = pull(address, target, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["revision"], found["files"], found["problems"]) == (NEW, 4, {})
    assert {name: (target / name).read_bytes() for name in FILES} == made.files[NEW]
    record = Record.read(target)
    assert record is not None
    assert (record.repository, record.revision) == (REPOSITORY, NEW)
    assert record.files["model.safetensors"].algorithm == "sha256"
    assert record.files["config.json"].algorithm == "git"
    # Again: the same commit, and no file is fetched twice.
    made.fetched.clear()
    made.branches["main"] = OLD
    assert pull(address, target).returncode == 0
    assert made.fetched == []
    assert (target / "config.json").read_bytes() == b'{"a": 2}'


def test_a_revision_that_is_asked_for_is_the_one_that_comes(hub: tuple[Hub, str], tmp_path: Path) -> None:
    _, address = hub
    done = pull(address, tmp_path / "model", "--revision", "v1", "--json")
    assert json.loads(done.stdout)["revision"] == OLD
    assert (tmp_path / "model/config.json").read_bytes() == b'{"a": 1}'


def test_a_pull_that_was_cut_goes_on_where_it_stopped(hub: tuple[Hub, str], tmp_path: Path) -> None:
    made, address = hub
    # The client writes what it has in steps of ten megabytes.
    large = SHARD * 80
    made.files[NEW]["model.safetensors"] = large
    made.cut["model.safetensors"] = 12_000_000
    target = tmp_path / "model"
    first = pull(address, target)
    second = first if first.returncode == 0 else pull(address, target)
    assert second.returncode == 0, second.stderr
    assert (target / "model.safetensors").read_bytes() == large
    assert made.ranges, "the second request asks for the rest only"
    assert all(int(asked.rsplit(":", 1)[1]) > 0 for asked in made.ranges)


def test_verify_finds_each_kind_of_damage_without_a_network(hub: tuple[Hub, str], tmp_path: Path) -> None:
    _, address = hub
    target = tmp_path / "model"
    assert pull(address, target).returncode == 0
    damaged = bytearray(SHARD)
    damaged[1234] ^= 1
    (target / "model.safetensors").write_bytes(damaged)
    (target / "tokenizer.json").unlink()
    (target / "config.json").write_bytes(b"{}")
    done = weights("verify", "--directory", str(target), "--json", HF_HUB_OFFLINE="1")
    assert done.returncode == 1
    problems = json.loads(done.stdout)["problems"]
    assert problems["tokenizer.json"] == "missing"
    assert problems["config.json"] == "2 bytes, recorded are 8"
    assert problems["model.safetensors"].startswith("sha256 ")
    assert set(problems) == {"tokenizer.json", "config.json", "model.safetensors"}
    told = weights("verify", "--directory", str(target))
    assert (told.returncode, told.stdout) == (1, "")
    assert "tokenizer.json: missing" in told.stderr


def test_offline_a_pull_verifies_what_is_there(hub: tuple[Hub, str], tmp_path: Path) -> None:
    _, address = hub
    target = tmp_path / "model"
    nothing = pull(address, target, HF_HUB_OFFLINE="1")
    assert nothing.returncode == 1
    assert "HF_HUB_OFFLINE is set, and nothing was pulled here before" in nothing.stderr
    assert pull(address, target).returncode == 0
    done = pull("http://127.0.0.1:9", target, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert f"all as {REPOSITORY} has them" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--revision", "v9"), "deepseek-ai/DeepSeek-V4-Pro at v9: "), (("--repository", "no/body"), "no/body at main: ")],
)
def test_what_the_hub_does_not_have(hub: tuple[Hub, str], tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    done = pull(hub[1], tmp_path / "model", *words)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hub_that_cannot_be_reached_ends_in_one_message(tmp_path: Path) -> None:
    done = pull("http://127.0.0.1:9", tmp_path / "model")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "dsv4: deepseek-ai/DeepSeek-V4-Pro at main: " in done.stderr


def test_verify_without_a_record_says_so(tmp_path: Path) -> None:
    done = weights("verify", "--directory", str(tmp_path))
    assert done.returncode == 1
    assert "nothing was pulled here" in done.stderr
    (tmp_path / NAME).write_text("[]")
    assert "not a record of weights" in weights("verify", "--directory", str(tmp_path)).stderr
