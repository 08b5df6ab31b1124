"""Where the running code comes from: the image, the sources as they were loaded, and the proof of patches."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from dsv4_serve.errors import CommandError
from dsv4_serve.patches.patch import PatchError, load_patches
from dsv4_serve.patches.verify import installed_tree

PATCH_PROOF = Path("/usr/share/dsv4-rocm/patches.json")
"""Written by `dsv4 patches verify --record` when the image is built."""
IMAGE_RECORD = PATCH_PROOF.with_name("image.json")
"""Written by `python -m dsv4_serve.image.record` when the image is built."""
PACKAGES = ("dsv4_serve", "dsv4_kernels")
PATCHES = Path(__file__).resolve().parents[2] / "patches"


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


def loaded_sources(modules: Mapping[str, ModuleType] | None = None) -> dict[str, str]:
    """sha256 of the source of each module of ours that this process has loaded, by module."""
    found = dict(sys.modules if modules is None else modules)
    files = {name: getattr(module, "__file__", None) for name, module in found.items()}
    return {
        name: file_digest(Path(file))
        for name, file in sorted(files.items())
        if file is not None and name.partition(".")[0] in PACKAGES
    }


def patched_files(root: Path = PATCHES) -> dict[str, dict[str, str]]:
    """sha256 of each file that a patch edits, as an import finds it, by project and path."""
    found: dict[str, dict[str, str]] = {}
    for patch in load_patches(root):
        try:
            tree = installed_tree(patch.project)
        except PatchError:
            continue
        there = (edit.target for edit in patch.files if (tree / edit.target).is_file())
        found.setdefault(patch.project, {}).update({target: file_digest(tree / target) for target in there})
    return found


def patches(proof: Path = PATCH_PROOF) -> list[dict[str, Any]] | None:
    """The rows of the image's proof; None where there is none, as in a checkout."""
    try:
        found: list[dict[str, Any]] = json.loads(proof.read_text())
    except FileNotFoundError:
        return None
    return found


def image_record(record: Path = IMAGE_RECORD) -> dict[str, str] | None:
    """What the image's build wrote down of it; None outside an image. CommandError: it cannot be read."""
    try:
        found = json.loads(record.read_text())
        return {name: str(value) for name, value in found.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise CommandError(f"{record}: not an image's record: {error}") from error


@cache
def file_digest(path: Path) -> str:
    """sha256 of a file, read once a process."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is one of ours"
    assert spec.origin is not None, f"{package} is no namespace"
    return Path(spec.origin).parent
