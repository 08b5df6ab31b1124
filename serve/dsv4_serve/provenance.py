"""Where the running code comes from: the sources as they lie there, and the image's proof of patches."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

PATCH_PROOF = Path("/usr/share/dsv4-rocm/patches.json")
"""Written by `dsv4 patches verify --record` when the image is built."""
PACKAGES = ("dsv4_serve", "dsv4_kernels")


@cache
def source_digests() -> dict[str, str]:
    """sha256 of our packages' Python sources, file names included, by package; computed once a process."""
    return {name: tree_digest(_folder(name)) for name in PACKAGES}


def tree_digest(folder: Path) -> str:
    """sha256 over every .py file below `folder`: its relative name and its bytes, in the order of names."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def patches(proof: Path = PATCH_PROOF) -> list[dict[str, Any]] | None:
    """The rows of the image's proof; None where there is none, as in a checkout."""
    try:
        found: list[dict[str, Any]] = json.loads(proof.read_text())
    except FileNotFoundError:
        return None
    return found


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is one of ours"
    assert spec.origin is not None, f"{package} is no namespace"
    return Path(spec.origin).parent
