"""tools/engine-env.sh: one shared environment a lock, linked into the tree; a failure leaves none behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A tree with the script and one engine whose lock is empty: building its environment needs no network."""
    tree = tmp_path / "clone"
    (tree / "tools").mkdir(parents=True)
    (tree / "tests" / "engine").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "engine-env.sh", tree / "tools")
    (tree / "tests" / "engine" / "requirements.lock").write_text("# nothing\n")
    return tree


def run(tree: Path, cache: Path, engine: str = "engine") -> subprocess.CompletedProcess[str]:
    env = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHON": sys.executable, "PIP_NO_INDEX": "1"}
    return subprocess.run(
        [tree / "tools" / "engine-env.sh", engine], env=env, capture_output=True, text=True, check=False
    )


def link(tree: Path) -> Path:
    return tree / "tests" / "engine" / ".venv"


@pytest.mark.slow
def test_two_clones_share_one_environment_until_a_lock_changes(clone: Path, tmp_path: Path) -> None:
    first = run(clone, tmp_path / "cache")
    assert (first.returncode, first.stderr) == (0, "")
    assert "setting up the engine environment" in first.stdout
    other = tmp_path / "other"
    shutil.copytree(clone, other, ignore=shutil.ignore_patterns(".venv"))
    second = run(other, tmp_path / "cache")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert link(clone).readlink() == link(other).readlink()
    assert (link(other) / "bin" / "python").exists()
    (clone / "tests" / "engine" / "requirements.lock").write_text("# changed\n")
    run(clone, tmp_path / "cache")
    assert link(clone).readlink() != link(other).readlink()
    assert link(other).exists()


@pytest.mark.slow
def test_a_package_that_cannot_be_had_fails_and_leaves_no_environment(clone: Path, tmp_path: Path) -> None:
    (clone / "tests" / "engine" / "requirements.lock").write_text("no-such-package==1.0\n")
    failed = run(clone, tmp_path / "cache")
    assert failed.returncode != 0
    assert "No matching distribution found for no-such-package==1.0" in failed.stdout
    assert not link(clone).is_symlink()
    assert not list((tmp_path / "cache").rglob(".complete"))


def test_an_unknown_engine_is_named(clone: Path, tmp_path: Path) -> None:
    failed = run(clone, tmp_path / "cache", "nothing")
    assert failed.returncode == 2
    assert failed.stderr == "engine-env.sh: tests/nothing/requirements.lock does not exist\n"


def test_a_real_directory_in_the_way_is_kept(clone: Path, tmp_path: Path) -> None:
    link(clone).mkdir()
    failed = run(clone, tmp_path / "cache")
    assert failed.returncode == 1
    assert failed.stderr == "engine-env.sh: tests/engine/.venv is not a link of mine; remove it\n"
    assert link(clone).is_dir()
