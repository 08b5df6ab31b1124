"""Checks of what is installed: the proof of patches, and locks that a dead process left."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from dsv4_serve.patches.at_import import installed_at_start
from dsv4_serve.preflight.result import Result, fail, ok
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.provenance import PATCH_PROOF

LOCK_PATTERNS = ("*.lock", "lock", "lock_*")
CACHES = {"AITER_JIT_DIR": "~/.aiter/jit", "TRITON_CACHE_DIR": "~/.triton/cache"}
"""Caches whose locks are held by being there. FlyDSL's are advisory: a file that nobody holds hinders nobody."""


def software_checks(profile: Profile, environ: Mapping[str, str], proof: Path = PATCH_PROOF) -> Iterator[Result]:
    """Nothing for a profile of a CPU."""
    if profile.hardware.arch != "gfx950":
        return
    yield patch_proof(proof)
    yield stale_locks(cache_folders(environ))


def patch_proof(path: Path) -> Result:
    """The record that every patch is in, or was proven unnecessary; and those applied on import are, in this image."""
    accepted = "an image whose build proved its patches: `dsv4 patches verify --record`"
    try:
        rows = json.loads(path.read_text())
        open_rows = [str(row["patch"]) for row in rows if not row["proven"]]
        runtime = {str(row["patch"]) for row in rows if row.get("runtime")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return fail("patches", f"{path}: no proof there ({error})", accepted)
    if open_rows or not rows:
        return fail("patches", f"not proven: {', '.join(open_rows) or 'no patch is recorded'}", accepted)
    if lost := sorted(runtime - set(installed_at_start() if runtime else [])):
        fix = "an interpreter that reads the image's .pth file: no -S, no other environment"
        return fail("patches", f"not applied on import here: {', '.join(lost)}", fix)
    return ok("patches", f"{len(rows)} proven, {len(runtime)} of them applied on import")


def cache_folders(environ: Mapping[str, str]) -> list[Path]:
    """Folders of compiled kernels with locks that can be left behind, as their variables name them."""
    return [Path(environ.get(name, default)).expanduser() for name, default in CACHES.items()]


def stale_locks(folders: list[Path]) -> Result:
    """Locks in caches of compiled kernels that no process holds: the next compilation would wait for them for ever."""
    stale = [path for path in lock_files(folders) if not _held(path)]
    if stale:
        named = ", ".join(str(path) for path in stale[:3]) + (f" and {len(stale) - 3} more" if len(stale) > 3 else "")
        return fail("JIT locks", f"left behind: {named}", "none: --remove-stale-locks deletes them")
    return ok("JIT locks", "none is left behind")


def lock_files(folders: list[Path]) -> list[Path]:
    """Every lock file under the folders, sorted."""
    return sorted({path for f in folders for pattern in LOCK_PATTERNS for path in f.rglob(pattern) if path.is_file()})


def remove_stale_locks(folders: list[Path]) -> list[Path]:
    """Delete the locks that nobody holds; those that are gone."""
    stale = [path for path in lock_files(folders) if not _held(path)]
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def _held(path: Path) -> bool:
    """Whether a living process holds the lock, by flock or by the pid that it wrote."""
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner = file.read(32).strip()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return owner.isdigit() and _alive(int(owner))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
