"""Dockerfiles and compose files as they stand: linted, parsed by the real Compose, and in step with versions.lock."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4_serve.pins.build_arguments import build_arguments
from dsv4_serve.pins.lock import Lock
from dsv4_serve.profiles.load import PROFILES, REPOSITORY, load_profile, profile_names
from dsv4_serve.settings import ServeSettings

DOCKERFILES = sorted(path.name for path in REPOSITORY.glob("Dockerfile.*"))
OVERLAYS = {
    "gpu": ["compose.yaml"],
    "cpu": ["compose.yaml", "compose.cpu.yaml"],
    "keys": ["compose.yaml", "compose.keys.yaml"],
    "node": ["compose.yaml", "compose.node.yaml"],
    "ci": ["compose.yaml", "compose.cpu.yaml", "tests/containers/compose.ci.yaml"],
}
ENGINES = {"Dockerfile.rocm": "sglang", "Dockerfile.cpu": "embedded", "Dockerfile.router": "router"}
EXPLAINED = re.compile(r'- "--|DSV4_(?!NODES)|(SGLANG|AITER)_\w+:|shm_gib|memlock_gib|nofile|- \{path: /cache')
LOCK = Lock.read(REPOSITORY / "versions.lock")


def tool(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(name)), *words]
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env={"HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# What an overlay asks for and has no default.
REQUIRED = {
    "keys": {"API_KEYS_FILE": "/etc/dsv4/api-keys"},
    "node": {"NODE_RANK": "1", "NODE_ADDRESS": "node-0:20000", "RANKS_KEY_FILE": "/etc/dsv4/ranks-key"},
}


def compose(name: str, **environment: str) -> dict[str, Any]:
    """The merged services of an overlay, as Compose itself resolves them, profile `router` included."""
    files = [word for file in OVERLAYS[name] for word in ("-f", file)]
    done = tool("docker-compose", *files, "--profile", "router", "config", **REQUIRED.get(name, {}), **environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(name: str) -> None:
    done = tool("hadolint", name)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian:latest\nRUN cd /x && apt-get install foo\n")
    assert tool("hadolint", str(tmp_path / "Dockerfile")).returncode == 1


@pytest.mark.parametrize("name", ["compose.yaml", "compose.keys.yaml"])
def test_compose_files_follow_the_specification(name: str) -> None:
    done = tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", name, HOME=str(REPOSITORY))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_resolves(name: str) -> None:
    services = compose(name)["services"]
    assert set(services) == {"serve", "prometheus", "grafana", "router"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == "unless-stopped"
        if "network_mode" not in service:
            assert {port["host_ip"] for port in service["ports"]} == {"127.0.0.1"}


def test_unknown_keys_and_a_missing_secret_are_refused(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services: {serve: {image: a:b, helthcheck: {}}}\n")
    assert tool("docker-compose", "-f", str(tmp_path / "compose.yaml"), "config", "-q").returncode != 0
    missing = tool("docker-compose", "-f", "compose.yaml", "-f", "compose.keys.yaml", "config", "-q")
    assert missing.returncode != 0
    assert "the file of accepted API keys" in missing.stderr


def test_the_server_gets_what_preflight_asks_for() -> None:
    serve = compose("gpu", RENDER_GID="992")["services"]["serve"]
    assert [device["source"] for device in serve["devices"]] == ["/dev/kfd", "/dev/dri"]
    assert serve["group_add"] == ["992", "44"]
    assert int(serve["shm_size"]) == 16 << 30
    assert serve["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
    assert serve["environment"]["DSV4_PROFILE"] in profile_names()
    assert "start_period" in serve["healthcheck"]


@pytest.mark.parametrize("name", [name for name in profile_names() if load_profile(name).engine.name == "sglang"])
def test_every_profile_gets_the_image_the_folders_and_the_limits_that_it_asks_for(name: str) -> None:
    asked, serve = load_profile(name).container, compose("gpu")["services"]["serve"]
    assert asked is not None
    assert asked.image == serve["image"]
    mounts = {volume["target"]: "ro" if volume.get("read_only") else "rw" for volume in serve["volumes"]}
    assert {volume.path: volume.access for volume in asked.volumes} == mounts
    assert int(serve["shm_size"]) >= asked.limits.shm_gib << 30
    assert serve["ulimits"]["nofile"]["soft"] >= asked.limits.nofile
    assert serve["ulimits"]["memlock"] == {"soft": -1, "hard": -1}


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_gives_the_reason_of_each_unusual_word(name: str) -> None:
    """A comment stands above each option, flag and variable, and above each limit of the container."""
    lines = [line.strip() for line in (PROFILES / f"{name}.yaml").read_text().splitlines()]
    for number, line in enumerate(lines):
        if EXPLAINED.match(line):
            assert lines[number - 1].startswith("#"), f"{name}: {line}"


def test_a_machine_without_a_gpu_needs_none_of_it() -> None:
    serve = compose("cpu")["services"]["serve"]
    assert not {"devices", "group_add", "ulimits"} & set(serve)
    assert serve["environment"]["DSV4_PROFILE"] == "tiny"
    v41 = compose("cpu", CPU_PROFILE="tiny-v41", PROFILE="v4-pro-tp8")["services"]["serve"]
    assert v41["environment"]["DSV4_PROFILE"] == "tiny-v41"
    assert [volume["target"] for volume in serve["volumes"]] == ["/cache"]


def test_keys_come_from_a_file() -> None:
    found = compose("keys")
    assert found["services"]["serve"]["environment"]["DSV4_API_KEYS_FILE"] == "/run/secrets/api_keys"
    assert found["secrets"]["api_keys"]["file"] == "/etc/dsv4/api-keys"


def test_a_machine_of_several_says_which_it_is_and_where_rank_0_is() -> None:
    found = compose("node")
    serve = found["services"]["serve"]
    profile = load_profile(serve["environment"]["DSV4_PROFILE"])
    assert profile.toggles()["DSV4_NODES"] == 2
    assert serve["environment"]["DSV4_NODE_RANK"] == "1"
    assert serve["environment"]["DSV4_NODE_ADDRESS"] == "node-0:20000"
    assert (serve["network_mode"], "ports" in serve) == ("host", False)
    assert serve["command"][:3] == ["serve", "--host", "127.0.0.1"], "the API stays on loopback unless BIND says more"
    assert found["secrets"]["ranks_key"]["file"] == "/etc/dsv4/ranks-key"


def test_the_router_looks_more_often_than_a_leaving_server_waits() -> None:
    words = compose("gpu")["services"]["router"]["command"]
    interval = int(next(word for word in words if word.startswith("--health-check-interval-secs=")).partition("=")[2])
    assert "--health-check-endpoint=/readyz" in words
    (leave,) = [field.default for field in fields(ServeSettings) if field.name == "leave_seconds"]
    assert interval < float(str(leave))


def test_the_ci_overlay_changes_images_and_what_a_bare_machine_forbids_only() -> None:
    """Everything else that runs in CI is what an operator runs."""
    cpu, ci = compose("cpu")["services"], compose("ci")["services"]
    for name, service in ci.items():
        changed = {key for key in {*service, *cpu[name]} if service.get(key) != cpu[name].get(key)}
        assert changed <= {"image", "ulimits", "devices", "group_add", "ports"}, name


def test_images_and_versions_are_those_of_the_lock() -> None:
    services = compose("gpu")["services"]
    version = LOCK.text("dsv4-rocm", "version")
    assert services["serve"]["image"] == f"dsv4-rocm:{version}-sglang"
    assert compose("cpu")["services"]["serve"]["image"] == f"dsv4-rocm:{version}-embedded"
    assert services["router"]["image"] == f"dsv4-rocm-router:{version}"
    for name in ("prometheus", "grafana"):
        assert services[name]["image"] == LOCK.text("images", name, "base_image")
    assert not any(service["image"].endswith(":latest") for service in services.values())


def test_the_example_names_every_variable_of_the_compose_files() -> None:
    used = {
        name: default
        for file in ("compose.yaml", "compose.cpu.yaml", "compose.keys.yaml", "compose.node.yaml")
        for name, default in re.findall(r"\$\{([A-Z_]+)(?::-([^}]*))?", (REPOSITORY / file).read_text())
    }
    example = (REPOSITORY / ".env.example").read_text()
    given = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", example, re.MULTILINE))
    assert set(given) == set(used)
    assert {name: text for name, text in given.items() if used[name]} == {n: t for n, t in used.items() if t}
    # DSV4_* would be taken for toggles by a `dsv4` that is run beside the file.
    assert not any(name.startswith("DSV4_") for name in given)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_build_arguments_are_those_that_the_file_takes(name: str) -> None:
    taken = set(re.findall(r"^ARG (\w+)", (REPOSITORY / name).read_text(), re.MULTILINE))
    engine = ENGINES[name]
    given = set(build_arguments(LOCK, engine, LOCK.channel(None)))
    assert given >= taken
    assert given - taken <= set()


def test_constraints_are_the_base_images_versions() -> None:
    lines = (REPOSITORY / "configs/constraints/rocm.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins == {"torch": LOCK.text("torch", "image"), "triton": LOCK.text("triton", "sglang")}


def test_nothing_but_the_products_own_files_enters_a_build() -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name in DOCKERFILES:
        sources = re.findall(r"^COPY (?!--from)(.+) \S+$", (REPOSITORY / name).read_text(), re.MULTILINE)
        for source in " ".join(sources).split():
            assert source in allowed or source.split("/")[0] in allowed, source
    assert not {".git", "tests", ".env"} & allowed
