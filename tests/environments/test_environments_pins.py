"""versions.lock against the lock files that the environments are built from: no pin stands twice with two values."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = {
    "product": ("locks/product.txt", "locks/test.txt"),
    "sglang": ("tests/sglang/requirements.lock",),
    "vllm": ("tests/vllm/requirements.lock",),
}


def versions() -> dict[str, Any]:
    return tomllib.loads((ROOT / "versions.lock").read_text())


def lines(environment: str) -> Iterable[str]:
    for name in LOCKS[environment]:
        for line in (ROOT / name).read_text().splitlines():
            if line and not line.startswith("#"):
                yield line


def pins(environment: str) -> dict[str, str]:
    found = (line.split("==") for line in lines(environment))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("environment", LOCKS)
def test_every_line_is_one_exact_pin_without_a_build_suffix(environment: str) -> None:
    for line in lines(environment):
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line), line


@pytest.mark.parametrize("environment", LOCKS)
def test_no_package_is_pinned_twice(environment: str) -> None:
    assert len(pins(environment)) == len(list(lines(environment)))


@pytest.mark.parametrize(
    ("environment", "package", "pin"),
    [
        ("product", "torch", ("torch", "cpu")),
        ("product", "triton", ("triton", "compile")),
        ("product", "transformers", ("transformers", "product")),
        ("sglang", "sglang", ("engines", "sglang", "version")),
        ("sglang", "torch", ("torch", "cpu")),
        ("sglang", "triton", ("triton", "sglang")),
        ("sglang", "transformers", ("transformers", "sglang")),
        ("vllm", "vllm", ("engines", "vllm", "version")),
        ("vllm", "torch", ("torch", "cpu")),
    ],
)
def test_environment_holds_the_pinned_version(environment: str, package: str, pin: tuple[str, ...]) -> None:
    value: Any = versions()
    for key in pin:
        value = value[key]
    assert pins(environment)[package] == value


def test_our_own_version_is_the_package_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert versions()["dsv4-rocm"]["version"] == project["version"]


def test_no_image_floats() -> None:
    for engine in versions()["engines"].values():
        image, digest = engine["base_image"], engine["base_digest"]
        assert image == "unresolved" or re.fullmatch(r"[a-z0-9./-]+:[A-Za-z0-9._-]+", image)
        assert not image.endswith(":latest")
        assert digest == "unresolved" or re.fullmatch(r"sha256:[0-9a-f]{64}", digest)


def test_aiter_commits_are_hexadecimal_and_the_default_channel_exists() -> None:
    aiter = versions()["aiter"]
    channels = {name: table for name, table in aiter.items() if isinstance(table, dict)}
    assert aiter["default"] in channels
    for table in channels.values():
        assert re.fullmatch(r"[0-9a-f]{7,40}", table["commit"])
