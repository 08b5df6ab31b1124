"""Folders of compiled kernels: one set an image, filled with what the image brings, before an engine looks for them.

AITER looks for its compiled modules in AITER_JIT_DIR alone once that is set, and not where its build left them. So that
nothing compiles on a live request, what the build left is copied there when the folder is new.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from dsv4_serve.errors import CommandError
from dsv4_serve.patches.patch import PatchError
from dsv4_serve.patches.verify import installed_tree

Tell = Callable[[str], None]

AITER, TRITON, FLYDSL = "AITER_JIT_DIR", "TRITON_CACHE_DIR", "FLYDSL_RUNTIME_CACHE_DIR"
FLYDSL_OF_IMAGE = Path("/opt/dsv4-rocm/flydsl")
"""Written by `python -m dsv4_serve.image.flydsl_variants` when the image is built."""


def prepare_caches(environ: Mapping[str, str], tell: Tell, flydsl: Path = FLYDSL_OF_IMAGE) -> None:
    """Make the folders that the environment names, and fill the new ones. CommandError: one cannot be written.

    Without such variables, as in a checkout, every compiler keeps its own folder and nothing is done.
    """
    for variable in (AITER, TRITON, FLYDSL):
        if variable not in environ:
            continue
        folder = Path(environ[variable])
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _fill(folder, _brought(variable, flydsl), tell)
        except OSError as error:
            raise CommandError(f"{variable}={folder}: cannot be written: {error.strerror or error}") from error


def _fill(folder: Path, files: Mapping[str, Path], tell: Tell) -> None:
    missing = {name: path for name, path in files.items() if not (folder / name).exists()}
    if not missing:
        return
    size = sum(path.stat().st_size for path in missing.values())
    tell(f"copying {len(missing)} compiled kernels of the image ({size / 1e9:.1f} GB) into {folder}")
    for name, path in missing.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: a start that is cut off must not leave half a library behind.
        part = target.with_name(f".{target.name}.part")
        shutil.copyfile(path, part)
        part.replace(target)


def _brought(variable: str, flydsl: Path) -> dict[str, Path]:
    if variable == AITER:
        return _prebuilt_aiter()
    return _files(flydsl, "*.pkl") if variable == FLYDSL else {}


def _prebuilt_aiter() -> dict[str, Path]:
    try:
        return _files(installed_tree("aiter") / "aiter" / "jit", "*.so", deep=False)
    except PatchError:
        return {}


def _files(folder: Path, pattern: str, deep: bool = True) -> dict[str, Path]:
    """Paths by their names relative to the folder; none where it is not there."""
    found = folder.rglob(pattern) if deep else folder.glob(pattern)
    return {path.relative_to(folder).as_posix(): path for path in sorted(found) if path.is_file()}
