"""The real Prometheus on the committed configuration, pointed at what a test started, and its HTTP API."""

from __future__ import annotations

import math
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from observability.promtool import RULES, require
from serve.harness import PATIENCE, wait_until

JOB = "dsv4"


class PrometheusServer:
    """Scrapes `targets` (host:port) every second; everything else is as committed."""

    def __init__(self, targets: Sequence[str], directory: Path) -> None:
        config = yaml.safe_load((RULES / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES / name) for name in config["rule_files"]]
        (job,) = config["scrape_configs"]
        assert job["job_name"] == JOB
        job["static_configs"] = [{"targets": list(targets)}]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{_free_port()}"
        self.log = directory / "prometheus.log"
        self._sink = self.log.open("wb")
        self._process = subprocess.Popen(
            [
                require("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={self.url.removeprefix('http://')}",
                "--log.level=warn",
            ],
            stdout=self._sink,
            stderr=subprocess.STDOUT,
        )
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def __enter__(self) -> PrometheusServer:
        wait_until(self._ready, "Prometheus is ready")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.http.close()
        self._process.terminate()
        self._process.wait(PATIENCE)
        self._sink.close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now; NaN is no data. AssertionError with Prometheus' words if it refuses."""
        answer = self.http.post("/api/v1/query", data={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        result = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            result = [{"metric": {}, "value": result}]
        return [sample for sample in result if not math.isnan(float(sample["value"][1]))]

    def rules(self) -> list[dict[str, Any]]:
        """Every loaded rule with its health and last error."""
        groups = self.http.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def _ready(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        try:
            return self.http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
