"""The 40 digits of a short commit, from a clone that holds commits and no files."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from dsv4_serve.errors import CommandError


def full_commit(repository: str, short: str) -> str:
    """Clone the repository's commits, without trees or files, and resolve. CommandError says what failed."""
    with tempfile.TemporaryDirectory(prefix="dsv4-pins.") as directory:
        bare = Path(directory) / "commits"
        _git("clone", "--quiet", "--bare", "--filter=tree:0", repository, str(bare))
        return _git("-C", str(bare), "rev-parse", "--verify", f"{short}^{{commit}}").strip()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)  # nosec B607
    except FileNotFoundError:
        raise CommandError("git is not installed: a short commit cannot be resolved") from None
    if done.returncode:
        raise CommandError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
