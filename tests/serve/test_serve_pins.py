"""versions.lock: what is open, what a build refuses, and `dsv4 pins resolve` against a registry that runs here."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import pytest

from dsv4_serve.cli import app
from dsv4_serve.errors import CommandError, UsageError
from dsv4_serve.pins.build_arguments import build_arguments
from dsv4_serve.pins.drift import Drift, base_drift, main, nvidia_packages
from dsv4_serve.pins.lock import Lock, refuse_open
from dsv4_serve.pins.registry import Image, image_digest
from dsv4_serve.profiles.load import REPOSITORY

DIGESTS = {("acme/engine", "v1"): "sha256:" + "a" * 64, ("library/python", "3.11.14"): "sha256:" + "b" * 64}
TOKEN = "pull-token"


class Registry(BaseHTTPRequestHandler):
    """As much of a registry as a pull of a manifest needs: a challenge, a token, and HEAD of a manifest."""

    def do_HEAD(self) -> None:
        match = re.fullmatch(r"/v2/(.+)/manifests/([^/]+)", self.path)
        known = DIGESTS.get((match[1], match[2])) if match else None
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            realm = f"http://{self.headers['Host']}/token"
            self._answer(401, {"WWW-Authenticate": f'Bearer realm="{realm}",service="standin"'})
        elif known is None or "image.index" not in self.headers["Accept"]:
            self._answer(404, {})
        else:
            self._answer(200, {"Docker-Content-Digest": known})

    def do_GET(self) -> None:
        asked = parse_qs(urlparse(self.path).query)
        scoped = asked.get("service") == ["standin"] and asked["scope"][0].endswith(":pull")
        body = json.dumps({"token": TOKEN} if scoped else {}).encode()
        self._answer(200 if scoped else 403, {"Content-Length": str(len(body))}, body)

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[str, str]:
    """A git repository of two commits: its address and its first commit."""
    at = tmp_path / "upstream"
    run = ["git", "-C", str(at), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", "init", "--quiet", str(at)], check=True)
    subprocess.run([*run, "config", "uploadpack.allowFilter", "true"], check=True)
    for name in ("one", "two"):
        subprocess.run([*run, "commit", "--quiet", "--allow-empty", "-m", name], check=True)
    first = subprocess.run([*run, "rev-parse", "HEAD~1"], check=True, capture_output=True, text=True).stdout.strip()
    return at.as_uri(), first


def write_lock(directory: Path, repository: str = "", commit: str = "0" * 40) -> Path:
    path = directory / "versions.lock"
    path.write_text(
        f"""# pins
[dsv4-rocm]
version = "0.1.0"
[rocm]
version = "10.0.0"
arch = "gfx950"
[flydsl]
version = "0.5.0"
[triton]
compile = "3.9.0"
[engines.sglang]
version = "0.5.23"
base_image = "acme/engine:v1"   # why this one
base_digest = "unresolved"
[engines.vllm]
version = "0.33.0"
base_image = "unresolved"
base_digest = "unresolved"
[images.cpu]
base_image = "python:3.11.14"
base_digest = "unresolved"
[aiter]
default = "current"
repository = "{repository}"
[aiter.current]
commit = "{commit}"
"""
    )
    return path


def test_resolve_fills_digests_and_commits_and_keeps_the_rest(
    tmp_path: Path, registry: str, repository: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    address, commit = repository
    path = write_lock(tmp_path, address, commit[:10])
    before = path.read_text()
    assert app(["pins", "resolve", "--lock", str(path), "--registry", registry, "--json"], standalone_mode=False) == 1
    outcomes = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert outcomes["engines.vllm.base_image"]["reason"] == "only a person can choose it"
    assert outcomes["engines.vllm.base_digest"]["reason"] == "base_image is not known either"
    expected = before.replace(f'"{commit[:10]}"', f'"{commit}"')
    for digest in DIGESTS.values():
        at = expected.index("base_digest", expected.index("acme/engine") if digest[-1] == "a" else 0)
        if digest[-1] == "b":
            at = expected.index("base_digest", expected.index("python:3.11.14"))
        expected = expected[:at] + expected[at:].replace('"unresolved"', f'"{digest}"', 1)
    assert path.read_text() == expected
    # What is left is no reason to refuse SGLang's build.
    assert refuse_open(Lock.read(path), "sglang", "current", allow=False) == []


def test_resolve_without_an_answer_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lock(tmp_path)
    before = path.read_text()
    unreachable = "http://127.0.0.1:9"
    assert app(["pins", "resolve", "--lock", str(path), "--registry", unreachable], standalone_mode=False) == 1
    assert "cannot be asked" in capsys.readouterr().out
    assert path.read_text() == before


def test_a_registry_that_does_not_know_the_tag(registry: str) -> None:
    with pytest.raises(CommandError, match=r"acme/engine:v2: .* answered 404"):
        image_digest("acme/engine:v2", registry)


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("python:3.11", Image(None, "library/python", "3.11")),
        ("acme/engine:v1", Image(None, "acme/engine", "v1")),
        ("registry.example:5000/a/b:v1", Image("registry.example:5000", "a/b", "v1")),
    ],
)
def test_references(text: str, image: Image) -> None:
    assert Image.parse(text) == image


@pytest.mark.parametrize("text", ["python", "registry.example:5000/a", "python:latest", ":v1"])
def test_refused_references(text: str) -> None:
    with pytest.raises(UsageError, match="image"):
        Image.parse(text)


def test_images_without_a_host_need_the_registry() -> None:
    with pytest.raises(UsageError, match="give its base URL with --registry"):
        image_digest("acme/engine:v1", None)


def test_a_build_refuses_unresolved_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = ["--lock", str(write_lock(tmp_path, commit="02575f1c3a"))]
    for verb in ("check", "build-args"):
        # A short commit is resolved by the checkout; a digest that nobody knows is not.
        with pytest.raises(CommandError, match=r"not resolved: engines.sglang.base_digest; `dsv4 pins resolve`"):
            app(["pins", verb, *lock], standalone_mode=False)
        assert app(["pins", verb, *lock, "--allow-unresolved"], standalone_mode=False) == 0
    words = capsys.readouterr().out.splitlines()
    assert "--build-arg=BASE_IMAGE=acme/engine:v1" in words
    assert "--build-arg=AITER_COMMIT=02575f1c3a" in words
    with pytest.raises(CommandError, match=r"images.cpu.base_digest; "):
        app(["pins", "check", "--engine", "embedded", *lock], standalone_mode=False)


def test_a_resolved_base_is_named_by_digest() -> None:
    tables = tomllib.loads((REPOSITORY / "versions.lock").read_text())
    tables["engines"]["sglang"]["base_digest"] = "sha256:" + "c" * 64
    found = build_arguments(Lock(Path("versions.lock"), tables), "sglang", "audited")
    assert found["BASE_IMAGE"] == f"{tables['engines']['sglang']['base_image']}@sha256:{'c' * 64}"
    assert found["AITER_COMMIT"] == "e4048607a535ace3a2b51ded31b1c8c2d45c0879"


def test_wrong_engine_and_channel_name_what_there_is() -> None:
    lock = Lock.read(REPOSITORY / "versions.lock")
    with pytest.raises(UsageError, match="accepted is embedded, router, sglang, vllm"):
        build_arguments(lock, "tgi", "current")
    with pytest.raises(UsageError, match="--channel newest: accepted is current, audited"):
        lock.channel("newest")


def test_lock_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        Lock.read(tmp_path / "none.lock")
    (tmp_path / "bad.lock").write_text("[")
    with pytest.raises(CommandError, match="not TOML"):
        Lock.read(tmp_path / "bad.lock")


def test_drift_of_a_base_image_is_named(tmp_path: Path) -> None:
    lock = Lock.read(REPOSITORY / "versions.lock")
    version = tmp_path / "version"
    version.write_text("10.0.0-1234\n")
    installed = {"torch": "2.11.0+rocm10.0", "triton": "3.8.0"}
    assert base_drift(lock, version, installed.get, "3.12.3") == []
    installed["torch"] = "2.10.0"
    found = base_drift(lock, tmp_path / "none", installed.get, "3.12.3")
    assert found == [Drift("rocm", "10.0.0", None), Drift("torch", "2.11.0", "2.10.0")]
    assert str(found[0]) == "rocm: pinned is 10.0.0, found is nothing"
    assert nvidia_packages(["torch", "nvidia-cublas-cu12", "cuda-python"]) == ["cuda-python", "nvidia-cublas-cu12"]


def test_the_drift_check_fails_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(REPOSITORY / "versions.lock")]) == 1
    assert "drift: rocm: pinned is 10.0.0, found is nothing" in capsys.readouterr().err
    assert main([]) == 2
