"""This project's distribution as SGLang's process finds it: its real metadata, built from pyproject.toml, on the path.

The environment of these tests is shared between clones and holds only the engine, so the distribution is not
installed into it; importlib.metadata reads the same files from a directory of the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "serve", ROOT / "kernels")
BUILD = (
    "import sys; from setuptools import setup; setup(script_args=['--quiet', 'egg_info', '--egg-base', sys.argv[1]])"
)


def build(directory: Path) -> Path:
    """`directory`, with dsv4_rocm.egg-info in it, made by the project's own build backend."""
    directory.mkdir(parents=True, exist_ok=True)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BUILD, str(directory)], cwd=ROOT, capture_output=True, text=True
    )
    if run.returncode:
        raise RuntimeError(f"no metadata from pyproject.toml:\n{run.stderr}")
    return directory


def environment(directory: Path) -> dict[str, str]:
    """Variables of a process that has the distribution of `build(directory)` and its sources on its path.

    Start it outside the repository: an editable install leaves metadata there, perhaps of an earlier day.
    """
    path = os.pathsep.join(map(str, (directory, *SOURCES)))
    return os.environ | {"PYTHONPATH": path}
