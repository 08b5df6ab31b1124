"""Whether what is installed here is what versions.lock says: the base image's check, run while the image is built."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dsv4_serve.errors import CommandError
from dsv4_serve.pins.lock import Lock

ROCM_VERSION = Path("/opt/rocm/.info/version")
PACKAGES = {("torch", "image"): "torch", ("triton", "sglang"): "triton"}
FORBIDDEN = ("nvidia-", "cuda-")


@dataclass(frozen=True, slots=True)
class Drift:
    """One thing that is not as pinned. `found` None: it is not there."""

    name: str
    pinned: str
    found: str | None

    def __str__(self) -> str:
        return f"{self.name}: pinned is {self.pinned}, found is {self.found or 'nothing'}"


def base_drift(
    lock: Lock,
    rocm_version: Path = ROCM_VERSION,
    installed: Callable[[str], str | None] | None = None,
    python: str | None = None,
) -> list[Drift]:
    """Python, ROCm, torch and Triton of this image against the lock; local version parts (+rocm...) do not count."""
    version_of = installed or _installed
    found = {"python": python or platform.python_version(), "rocm": _first_words(rocm_version)}
    pinned = {"python": lock.text("python", "image"), "rocm": lock.text("rocm", "version")}
    for (table, key), package in PACKAGES.items():
        pinned[package] = lock.text(table, key)
        found[package] = version_of(package)
    return [Drift(name, want, found[name]) for name, want in pinned.items() if _public(found[name] or "") != want]


def nvidia_packages(names: list[str] | None = None) -> list[str]:
    """Distributions of another vendor's run time, which have no place in this image."""
    listed = [d.metadata["Name"] for d in importlib.metadata.distributions()] if names is None else names
    return sorted({name for name in listed if name.lower().startswith(FORBIDDEN)})


def main(arguments: list[str]) -> int:
    """`python -m dsv4_serve.pins.drift versions.lock [rocm version file]`: exit 1 with every drift, 0 without any."""
    if len(arguments) not in (1, 2):
        print("usage: python -m dsv4_serve.pins.drift VERSIONS.LOCK [ROCM_VERSION_FILE]", file=sys.stderr)
        return 2
    lock, rocm = Path(arguments[0]), Path(arguments[1]) if len(arguments) == 2 else ROCM_VERSION
    try:
        problems = [str(drift) for drift in base_drift(Lock.read(lock), rocm)]
    except CommandError as error:
        problems = [str(error)]
    problems += [f"{name}: another vendor's run time" for name in nvidia_packages()]
    for problem in problems:
        print(f"drift: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _public(version: str) -> str:
    return version.split("+", 1)[0].split("-", 1)[0].strip()


def _first_words(path: Path) -> str | None:
    return path.read_text().strip() if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
