"""What the plugin adds to the start of the real server: the same server without and with it, in one run.

    cd tests/sglang && PYTHONPATH=.:..:../../serve:../../kernels .venv/bin/python -m simulated_server.plugin_startup

CPU seconds of the server's processes count, beside the wall clock, because they do not depend on what else runs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.sglang_adapter import SglangAdapter
from dsv4_serve.profiles.load import load_profile
from dsv4_serve.supervisor import free_port
from serve.harness import MODEL
from simulated_server import running

# Each kind once early and once late, so that a machine that slows down or speeds up favours neither.
ORDER = (False, True, True, False, False, True)
LIMIT_SECONDS = 3.0
NO_PLUGIN = {"SGLANG_PLUGINS": "none"}


@dataclass(frozen=True)
class Start:
    """Seconds from the command to the first answer of /health."""

    plugin: bool
    wall: float
    cpu: float


def measure(directory: Path, plugin: bool) -> Start:
    """Start the server, wait for its health, and end it."""
    adapter = SglangAdapter(EngineRun(directory / MODEL, free_port()))
    profile = load_profile(str(directory / running.FILE))
    environment = os.environ | adapter.environment(profile) | ({} if plugin else NO_PLUGIN)
    with (directory / "server.log").open("w") as log:
        begin = time.monotonic()
        server = subprocess.Popen(adapter.command(profile), env=environment, stdout=log, stderr=log, cwd=directory)
        try:
            while not _healthy(adapter.run.port):
                if server.poll() is not None:
                    raise SystemExit(f"the server ended:\n{(directory / 'server.log').read_text()[-4000:]}")
                time.sleep(0.1)
            return Start(plugin, time.monotonic() - begin, _cpu_seconds(server.pid))
        finally:
            for process in [*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)]:
                process.kill()
            server.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


def _cpu_seconds(pid: int) -> float:
    root = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:4]) for process in [root, *root.children(recursive=True)])


def report(starts: list[Start]) -> Mapping[str, float]:
    """Seconds that the plugin adds, by kind: medians with it less medians without."""
    return {
        kind: statistics.median(getattr(s, kind) for s in starts if s.plugin)
        - statistics.median(getattr(s, kind) for s in starts if not s.plugin)
        for kind in ("wall", "cpu")
    }


def main() -> int:
    """Exit code 1 when the plugin adds more CPU seconds than it may."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        running.prepare(directory)
        starts = []
        for plugin in ORDER:
            starts.append(measure(directory, plugin))
            shown = "with" if plugin else "without"
            print(f"{shown:8} wall {starts[-1].wall:6.1f} s   CPU {starts[-1].cpu:6.1f} s", flush=True)
    added = report(starts)
    print(
        f"added    wall {added['wall']:6.1f} s   CPU {added['cpu']:6.1f} s   (medians; at most {LIMIT_SECONDS:g} s CPU)"
    )
    return 0 if added["cpu"] <= LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
