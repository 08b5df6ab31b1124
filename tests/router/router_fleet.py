"""Servers of the tiny model, and the real sglang-router in front of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import httpx
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.supervisor import free_port
from serve.harness import COMMAND, Launcher, wait_until

# The router looks once a second: a server that leaves must stay until it was looked at.
LEAVE_SECONDS = 3


class Server:
    """One `dsv4 serve` on a port that it keeps over restarts."""

    def __init__(self, model: Path) -> None:
        self._model, self.port = model, free_port()
        self.launcher = self._start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> Launcher:
        options = ["--profile", "tiny", "--port", str(self.port), "--leave-seconds", str(LEAVE_SECONDS)]
        threads = {"OMP_NUM_THREADS": "1"}
        return Launcher(self._model, options, command=COMMAND, environment=threads, wait=False)

    def wait(self) -> None:
        wait_until(self.launcher.ready, f"{self.url} is ready", patience=180)

    def drain(self) -> int:
        """SIGTERM, then the exit code."""
        self.launcher.signal(signal.SIGTERM)
        return self.launcher.exit_code()

    def kill(self) -> None:
        self.launcher.signal(signal.SIGKILL)
        self.launcher.exit_code()

    def restart(self) -> None:
        self.launcher.http.close()
        self.launcher = self._start()
        self.wait()

    def tokens(self) -> tuple[int, int]:
        """(prompt tokens, cached tokens) since its start."""
        text = self.launcher.get("/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

        def total(name: str) -> int:
            return int(sum(sample.value for sample in samples if sample.name == name))

        return total("dsv4_prompt_tokens_total"), total("dsv4_cached_tokens_total")

    def close(self) -> None:
        self.launcher.__exit__(None, None, None)


class Router:
    """sglang-router as an operator runs it, with its health check on our /readyz."""

    def __init__(self, servers: Sequence[Server], policy: str) -> None:
        self.port, metrics = free_port(), free_port()
        self._servers = len(servers)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(self.port)),
                *("--policy", policy, "--worker-urls", *(server.url for server in servers)),
                *("--health-check-endpoint", "/readyz", "--health-check-interval-secs", "1"),
                *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
                *("--worker-startup-check-interval", "1", "--log-level", "warn"),
                *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Router:
        try:
            wait_until(self._ready, "the router knows its servers", patience=60)
        except AssertionError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(60)

    def _ready(self) -> bool:
        assert self._process.poll() is None, "the router ended"
        try:
            workers = httpx.get(f"{self.url}/workers", trust_env=False).json()["workers"]
        except httpx.TransportError:
            return False
        return len(workers) == self._servers and all(worker["is_healthy"] for worker in workers)
