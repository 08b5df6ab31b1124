"""README's demonstration finds its record with either tiny model, and says what is wrong when no server answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from serve.harness import COMMAND, Launcher

REPOSITORY = Path(__file__).parents[2]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "tools" / "lookup_demo.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(("profile", "name"), [("tiny", "tiny-v4"), ("tiny-v41", "tiny-v41")])
def test_the_demonstration_finds_the_record_cold_and_cached(profile: str, name: str) -> None:
    model = REPOSITORY / "configs" / "models" / name
    with Launcher(model, ["--profile", profile], command=COMMAND) as served:
        done = demo(served.url)
    assert done.returncode == 0, done.stdout + done.stderr
    _, cold, warm = done.stdout.splitlines()
    assert ", 0 of them cached, " in cold
    assert ", 2816 of them cached, " in warm


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("http://127.0.0.1:9", 1, "http://127.0.0.1:9: [Errno 111] Connection refused; `make serve` starts a server"),
        ("127.0.0.1:8000", 2, "'127.0.0.1:8000': accepted is an address such as http://127.0.0.1:8000"),
    ],
)
def test_without_a_server_it_says_so(url: str, code: int, told: str) -> None:
    done = demo(url)
    assert done.returncode == code
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_it_has_help() -> None:
    assert "(default: http://127.0.0.1:8000)" in demo("--help").stdout
