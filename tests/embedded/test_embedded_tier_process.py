"""The disk tier over real restarts of the engine's process, by SIGTERM and by SIGKILL, with faults in between."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from embedded.api_harness import DEADLINE_SECONDS
from embedded.harness import prompt

MODULE = [sys.executable, "-m", "dsv4_serve.engines.embedded"]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
ASK = prompt(800, seed=21)
PAGES = 3


@pytest.fixture(autouse=True)
def end_all() -> Iterator[None]:
    """A failed test leaves no process behind."""
    yield
    while Process.started:
        left = Process.started.pop()
        left.kill()
        left.communicate(timeout=DEADLINE_SECONDS)


class Process:
    """One run of the engine with a disk tier and no host tier."""

    started: ClassVar[list[subprocess.Popen[str]]] = []

    def __init__(self, model: Path, disk: Path, *options: str) -> None:
        self._command = [*MODULE, "--model-path", str(model), "--served-model-name", "tiny", "--port", "0"]
        tiers = ["--hicache", "--host-bytes", "0", "--disk-dir", str(disk), "--max-total-tokens", "4096"]
        self._process = subprocess.Popen(
            [*self._command, *tiers, *options], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        self.started.append(self._process)
        assert self._process.stderr is not None
        self.log = ""
        for line in self._process.stderr:
            self.log += line
            if found := re.search(r"serving tiny on (http://127\.0\.0\.1:\d+)", line):
                self.url = found.group(1)
                return
        raise AssertionError(self.log)

    def ask(self) -> tuple[object, int]:
        """The answer with its log-probabilities, and how many of its prompt's tokens were cached."""
        body = {"model": "tiny", "prompt": ASK, "max_tokens": 4, "temperature": 0, "logprobs": 3}
        answer: Any = httpx.post(f"{self.url}/v1/completions", json=body, timeout=DEADLINE_SECONDS).json()
        details = answer["usage"]["prompt_tokens_details"]
        return (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]), details["cached_tokens"]

    def metric(self, series: str) -> float:
        text = httpx.get(f"{self.url}/metrics", timeout=DEADLINE_SECONDS).text
        return float(next(line for line in text.splitlines() if line.startswith(series + " ")).split()[-1])

    def end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        _, rest = self._process.communicate(timeout=DEADLINE_SECONDS)
        self.log += rest
        assert "Traceback" not in self.log, self.log


@pytest.mark.slow
def test_answers_are_the_same_after_restarts_kills_and_faults(tiny_dir: Path, tmp_path: Path) -> None:
    process = Process(tiny_dir, tmp_path)
    cold, cached = process.ask()
    assert cached == 0
    # The answer is there before the disk has everything: a kill now would lose pages, not answers.
    while process.metric('dsv4_kv_stored_pages_total{tier="disk"}') < PAGES:
        pass
    process.end(signal.SIGKILL)

    process = Process(tiny_dir, tmp_path)
    assert process.ask() == (cold, PAGES * 256)
    assert process.metric('dsv4_cached_tokens_total{tier="disk"}') == PAGES * 256
    process.end(signal.SIGTERM)

    # In order of their prefix, by the index: the second page is cut, and so the third has nothing to continue.
    second = _page_files(tmp_path)[1]
    second.write_bytes(second.read_bytes()[:-1000])
    process = Process(tiny_dir, tmp_path)
    assert process.ask() == (cold, 256)
    assert process.metric('dsv4_kv_refused_pages_total{reason="truncated",tier="disk"}') == 1
    process.end(signal.SIGTERM)
    assert re.search(r"page \w{16} is not used: it has \d+ bytes, its regions end at \d+", process.log)

    # What was computed again was written again.
    process = Process(tiny_dir, tmp_path)
    assert process.ask() == (cold, PAGES * 256)
    process.end(signal.SIGTERM)


@pytest.mark.slow
def test_pages_of_another_index_format_are_foreign(tiny_dir: Path, tmp_path: Path) -> None:
    process = Process(tiny_dir, tmp_path)
    process.ask()
    process.end(signal.SIGTERM)
    process = Process(tiny_dir, tmp_path, "--no-hadamard")
    _, cached = process.ask()
    assert cached == 0
    assert process.metric('dsv4_kv_refused_pages_total{reason="foreign",tier="disk"}') == PAGES
    with pytest.raises(AssertionError, match="another process uses it; accepted is a directory of its own"):
        Process(tiny_dir, tmp_path)
    process.end(signal.SIGTERM)


def _page_files(disk: Path) -> list[Path]:
    """The page files from the root down."""
    lines = (disk / "index").read_text().splitlines()
    parents = {re.search(r'"parent":"(\w+)"', line)[1]: line for line in lines}  # type: ignore[index]
    found, at = [], "0" * 64
    while at in parents:
        at = re.search(r'"prefix":"(\w+)"', parents[at])[1]  # type: ignore[index]
        found.append(disk / f"{at}.page")
    return found
