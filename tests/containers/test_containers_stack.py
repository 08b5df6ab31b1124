"""The CPU image, really built, and the stack, really brought up by Docker Compose on a Docker Engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from containers.docker_engine import DockerEngine, unavailable
from dsv4_serve.pins.build_arguments import build_arguments
from dsv4_serve.pins.lock import Lock
from dsv4_serve.profiles.load import REPOSITORY

BASE, SERVE, PROMETHEUS = "localhost/base:ci", "localhost/dsv4-rocm:ci", "localhost/prometheus:ci"
PACKAGES = "ca-certificates,python3,python3-venv,prometheus,wget"
FILES = ("compose.yaml", "compose.cpu.yaml", "tests/containers/compose.ci.yaml")
PROMETHEUS_FILE = f"""FROM {BASE}
RUN mkdir -p /prometheus && chown nobody /prometheus
USER nobody
ENTRYPOINT ["/usr/bin/prometheus"]
"""
UP = ("--wait", "--wait-timeout", "240", "--no-build", "--pull", "never")
LOCK = Lock.read(REPOSITORY / "versions.lock")
WHY = unavailable()


@pytest.mark.slow
@pytest.mark.containers
def test_the_stack_on_a_real_engine(tmp_path: Path) -> None:
    if WHY is not None:
        # A developer's machine may lack an engine; CI may not.
        assert not os.environ.get("CI"), WHY
        pytest.skip(WHY)
    with DockerEngine() as engine:
        build(engine, tmp_path)
        compose = Compose(engine)
        try:
            compose("up", "--detach", *UP, "serve", "prometheus")
            the_api_answers(compose)
            prometheus_scraped_it(compose)
            the_container_is_confined(compose)
            the_image_says_what_it_is(engine, compose)
            it_comes_back_after_a_kill(compose)
            it_stops_in_good_order(compose)
        except BaseException:
            print(compose("logs", "--tail", "60"))
            raise
        finally:
            compose("down", "--volumes", "--timeout", "10")


class Compose:
    """`docker compose` on the files of the CI stack."""

    def __init__(self, engine: DockerEngine) -> None:
        self.engine = engine
        self._files = [word for name in FILES for word in ("-f", str(REPOSITORY / name))]

    def __call__(self, *words: str) -> str:
        return self.engine.docker("compose", *self._files, *words, cwd=REPOSITORY)

    def identity(self, service: str) -> str:
        return self("ps", "--all", "--quiet", service)

    def state(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.docker("inspect", self.identity(service)))[0]["State"]
        return found

    def inside(self, *words: str) -> str:
        return self.engine.docker("exec", self.identity("serve"), *words)

    def url(self, service: str, port: int, path: str) -> str:
        return f"http://{self('port', service, str(port))}{path}"


def build(engine: DockerEngine, scratch: Path) -> None:
    """A Debian base from this machine's own mirror, the product's image on it, and a Prometheus."""
    engine.docker("import", "--change", "ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin", str(base_archive()), BASE)
    wheels()
    pins = build_arguments(LOCK, "embedded", "current") | {"BASE_IMAGE": BASE}
    words = [f"--build-arg={name}={value}" for name, value in pins.items()]
    engine.docker("build", "--quiet", "--file", "Dockerfile.cpu", "--tag", SERVE, *words, ".", cwd=REPOSITORY)
    (scratch / "Dockerfile").write_text(PROMETHEUS_FILE)
    engine.docker("build", "--quiet", "--tag", PROMETHEUS, str(scratch))


def base_archive() -> Path:
    """Made once a machine: half a minute."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsv4-rocm" / "containers"
    archive = cache / f"bookworm-{zlib.crc32(PACKAGES.encode()):x}.tar"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = archive.with_suffix(f".{os.getpid()}.tar")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(part)]
        subprocess.run(command, check=True, capture_output=True, timeout=240)
        part.rename(archive)
    return archive


def wheels() -> None:
    """As `make image` does, with the index that this machine is set up for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", "build/wheels", "-r", "locks/product.txt"]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, timeout=240)


def the_api_answers(compose: Compose) -> None:
    asked = {"model": "dsv4-tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    answer = post(compose.url("serve", 8000, "/v1/chat/completions"), asked)
    assert answer["usage"]["completion_tokens"] >= 1
    assert compose.state("serve")["Health"]["Status"] == "healthy"


def prometheus_scraped_it(compose: Compose) -> None:
    def generated() -> bool:
        query = urllib.parse.urlencode({"query": "sum(dsv4_generated_tokens_total)"})
        found = get(compose.url("prometheus", 9090, f"/api/v1/query?{query}"))["data"]["result"]
        return bool(found) and float(found[0]["value"][1]) >= 1

    within(40, generated, "Prometheus has no dsv4_generated_tokens_total")


def the_container_is_confined(compose: Compose) -> None:
    assert compose.inside("id", "-u") == "10001"
    assert "Read-only file system" in compose.engine.fails("exec", compose.identity("serve"), "touch", "/opt/x")
    status = dict(
        line.split(":\t", 1) for line in compose.inside("cat", "/proc/1/status").splitlines() if ":\t" in line
    )
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"


def the_image_says_what_it_is(engine: DockerEngine, compose: Compose) -> None:
    config = json.loads(engine.docker("image", "inspect", SERVE))[0]["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["dsv4"]
    assert config["Labels"]["org.opencontainers.image.version"] == LOCK.text("dsv4-rocm", "version")
    manifest = get(compose.url("serve", 8001, "/manifest"))
    assert manifest["version"] == LOCK.text("dsv4-rocm", "version")
    assert manifest["image"]["identity"] == config["Labels"]["dsv4.identity"]
    assert manifest["image"]["base_image"] == BASE
    assert manifest["backends"]
    plan = json.loads(
        engine.docker("run", "--rm", "--network", "none", SERVE, "plan", "--profile", "v4-pro-tp8", "--json")
    )
    assert plan["index_bytes_per_token"]["fp4"] == 510


def it_comes_back_after_a_kill(compose: Compose) -> None:
    before = compose.state("serve")
    os.kill(before["Pid"], 9)

    def back() -> bool:
        now = compose.state("serve")
        return now["Pid"] not in (0, before["Pid"]) and now["Health"]["Status"] == "healthy"

    within(120, back, "the server was killed and did not become healthy again")
    the_api_answers(compose)


def it_stops_in_good_order(compose: Compose) -> None:
    """A request that is under way when the stop comes is answered to its end, and then the server leaves by itself."""
    asked = {"model": "dsv4-tiny", "prompt": "once", "max_tokens": 200, "ignore_eos": True}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, compose.url("serve", 8000, "/v1/completions"), asked)
        within(60, lambda: running(compose), "the request never came to the engine")
        compose("stop", "serve")
        assert answer.result()["usage"]["completion_tokens"] == 200
    state = compose.state("serve")
    assert (state["ExitCode"], state["OOMKilled"]) == (0, False)


def running(compose: Compose) -> bool:
    with urllib.request.urlopen(compose.url("serve", 8001, "/metrics"), timeout=20) as metrics:
        lines = metrics.read().decode().splitlines()
    return any(line.startswith("dsv4_running_requests") and float(line.split()[-1]) >= 1 for line in lines)


def within(seconds: float, holds: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return
        time.sleep(1)
    raise AssertionError(otherwise)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
