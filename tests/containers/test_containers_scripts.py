"""The scripts of Dockerfile.rocm's stages, run here as they stand: what drifts ends the build, the rest is recorded."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from dsv4_serve.profiles.load import REPOSITORY
from patches.synthetic import HALVED, ORIGINAL, OTHER, TARGET, write_patch, write_patches, write_tree

DOCKER = REPOSITORY / "docker"
SCRIPTS = sorted(DOCKER.glob("*.sh"))


def run(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script with this environment's interpreter and `dsv4` first in its path."""
    binaries = Path(sys.executable).parent
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    variables: Mapping[str, str] = os.environ | {"PATH": path, "PYTHONPATH": f"{REPOSITORY / 'tests'}"} | environment
    return subprocess.run(
        [str(DOCKER / name), *words], env=variables, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.parametrize("script", [*SCRIPTS, *(REPOSITORY / "tools").glob("*.sh")], ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script: Path) -> None:
    command = [str(Path(sys.executable).with_name("shellcheck")), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_dockerfile_runs_every_script() -> None:
    text = (REPOSITORY / "Dockerfile.rocm").read_text()
    assert [path.name for path in SCRIPTS if f"docker/{path.name}" not in text] == []
    assert all(os.access(path, os.X_OK) for path in SCRIPTS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An image's root whose lock pins what is installed here."""
    (tmp_path / "serve").symlink_to(REPOSITORY / "serve")
    (tmp_path / "rocm" / ".info").mkdir(parents=True)
    (tmp_path / "rocm" / ".info" / "version").write_text("10.0.0-1\n")
    (tmp_path / "versions.lock").write_text(
        f'[python]\nimage = "{platform.python_version()}"\n[rocm]\nversion = "10.0.0"\n'
        f'[torch]\nimage = "{version("torch").split("+")[0]}"\n[triton]\nsglang = "{version("triton")}"\n'
    )
    return tmp_path


def test_the_pin_check(root: Path) -> None:
    done = run("base.sh", ROOT=str(root), ROCM_PATH=str(root / "rocm"))
    assert (done.returncode, done.stderr) == (0, "")
    (root / "rocm" / ".info" / "version").write_text("7.2.0\n")
    done = run("base.sh", ROOT=str(root), ROCM_PATH=str(root / "rocm"))
    assert done.returncode == 1
    assert done.stderr == "drift: rocm: pinned is 10.0.0, found is 7.2.0\n"


def test_the_launcher_sees_the_engines_packages_behind_its_own(tmp_path: Path) -> None:
    """A base of its own stands for the engine's; through its .pth file it has what this environment has."""
    base, launcher, root = tmp_path / "base", tmp_path / "launcher", tmp_path / "root"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(base)], check=True)
    site = next(base.glob("lib/python*/site-packages"))
    here = Path(sys.executable).parent.parent
    (site / "here.pth").write_text(
        f"import site; site.addsitedir({str(next(here.glob('lib/python*/site-packages')))!r})\n"
    )
    (root / "locks").mkdir(parents=True)
    (root / "locks" / "product.txt").write_text(f"torch=={version('torch')}\n")
    done = run(
        "launcher.sh",
        ROOT=str(root),
        LAUNCHER=str(launcher),
        PATH=f"{base / 'bin'}{os.pathsep}{os.environ['PATH']}",
        PIP_DISABLE_PIP_VERSION_CHECK="1",
    )
    assert done.returncode == 0, done.stderr
    command = [str(launcher / "bin" / "dsv4"), "plan", "--profile", "v4-pro-tp8", "--json"]
    found = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout)["index_bytes_per_token"]["fp4"] == 510
    prefix = [str(root / "bin" / "python3"), "-c", "import sys; print(sys.prefix)"]
    assert subprocess.run(prefix, capture_output=True, text=True, check=True).stdout.strip() == str(base)


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_a_short_commit_is_checked_out_and_recorded_with_all_digits(tmp_path: Path) -> None:
    upstream = write_tree(tmp_path / "upstream")
    git(upstream, "init", "--quiet")
    git(upstream, "add", ".")
    git(upstream, "commit", "--quiet", "-m", "one")
    commit = git(upstream, "rev-parse", "HEAD")
    (upstream / TARGET).write_text(OTHER)
    git(upstream, "commit", "--quiet", "-am", "two")
    folder, record = tmp_path / "checkout", tmp_path / "share" / "toy.commit"
    done = run("checkout.sh", f"file://{upstream}", commit[:10], str(folder), str(record))
    assert done.returncode == 0, done.stderr
    assert record.read_text() == f"{commit}\n"
    assert (folder / TARGET).read_text() == ORIGINAL
    again = tmp_path / "again"
    assert run("checkout.sh", f"file://{upstream}", commit, str(again), str(record)).returncode == 0
    assert (again / TARGET).read_text() == ORIGINAL
    done = run("checkout.sh", f"file://{upstream}", "0123456789", str(tmp_path / "none"), str(record))
    assert done.returncode != 0


def test_patches_are_applied_recorded_and_shown(tmp_path: Path) -> None:
    tree, share = write_tree(tmp_path / "tree"), tmp_path / "share"
    where = {"SHARE": str(share), "PATCHES": str(write_patches(tmp_path / "patches")), "SITE": str(tmp_path)}
    done = run("patch.sh", "toy", str(tree), **where)
    assert done.returncode == 0, done.stderr
    assert (tree / TARGET).read_text() == HALVED
    assert "-    return x + 1\n+    return x * 2\n" in (share / "toy.diff").read_text()
    assert [row["action"] for row in json.loads((share / "applied.json").read_text())] == ["apply", "apply"]
    assert str(share / "applied.json") in (tmp_path / "zz-dsv4-runtime-patches.pth").read_text()


def test_a_tree_that_moved_on_ends_the_build_by_name(tmp_path: Path) -> None:
    tree, root = write_tree(tmp_path / "tree", OTHER), tmp_path / "patches"
    write_patch(root, "double", ORIGINAL, HALVED, "probe_double")
    done = run("patch.sh", "toy", str(tree), SHARE=str(tmp_path), PATCHES=str(root), SITE=str(tmp_path))
    assert done.returncode == 1
    assert "toy/double: pre-image unknown, probe broken: double(3) is 4" in done.stderr
    assert (tmp_path / "toy.diff").read_text() == "# toy/double: no edit, its pre-image is not this one\n"
    assert not (tmp_path / "applied.json").exists()


def test_code_objects_of_other_architectures_go(tmp_path: Path) -> None:
    for path in (
        "hsa/gfx950/a.co",
        "hsa/gfx942/deep/b.co",
        "hsa/codegen.py",
        "meta/hsa/gfx950/c.co",
        "meta/hsa/gfx1250/d.co",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert run("prune.sh", str(tmp_path), "gfx950").returncode == 0
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["hsa/codegen.py", "hsa/gfx950/a.co", "meta/hsa/gfx950/c.co"]
    done = run("prune.sh", str(tmp_path), "gfx1250")
    assert (done.returncode, "no folder gfx1250" in done.stderr) == (1, True)
    assert (tmp_path / "hsa/gfx950/a.co").exists()


@pytest.mark.slow
def test_our_kernels_are_compiled_ahead_of_time(tmp_path: Path) -> None:
    """What one profile launches, by the script that compiles everything in the image; no GPU, no ROCm."""
    out = tmp_path / "code-objects"
    done = run("kernels.sh", str(out), "gfx950", PROFILE="v41-flash-tp2")
    assert done.returncode == 0, done.stderr
    kernels = json.loads((out / "kernels.json").read_text())["kernels"]
    assert f"{len(kernels)} files with code for gfx950" in done.stdout
    assert {(out / kernel["file"]).suffix for kernel in kernels} == {".hsaco"}


def finish(tmp_path: Path, constraint: str, *modules: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The last script on a patched tree with one code object."""
    tree, share = write_tree(tmp_path / "tree", HALVED), tmp_path / "share"
    share.mkdir()
    code = bytearray(64)
    code[:4], code[18:20], code[48:52] = b"\x7fELF", (224).to_bytes(2, "little"), (0x54F).to_bytes(4, "little")
    (tree / "kernel.hsaco").write_bytes(bytes(code))
    (tmp_path / "constraints.txt").write_text(constraint)
    fields = {"image": "dsv4-rocm:0.1.0-sglang", "version": "0.1.0", "engine": "sglang", "identity": "ab12"}
    fields |= {"base_image": "b:1", "engine_version": "0.5.23", "channel": "audited", "arch": "gfx950"}
    fields |= {"aiter_commit": "e4048607a535ace3a2b51ded31b1c8c2d45c0879"} | changes
    words = [str(tree), str(tmp_path / "constraints.txt"), "gfx950", *(f"{k}={v}" for k, v in fields.items())]
    where = {"SHARE": str(share), "CODE_OBJECTS": str(tree), "PATCHES": str(write_patches(tmp_path / "patches"))}
    return run("finish.sh", "toy", *words, "--", *modules, **where)


def test_the_last_checks_leave_the_images_record(tmp_path: Path) -> None:
    done = finish(tmp_path, f"triton=={version('triton')}\n", "dsv4_serve", "dsv4_kernels")
    assert done.returncode == 0, done.stderr
    share = tmp_path / "share"
    assert all(row["proven"] for row in json.loads((share / "patches.json").read_text()))
    assert json.loads((share / "image.json").read_text())["aiter_commit"].startswith("e4048607a5")


@pytest.mark.parametrize(
    ("constraint", "module", "changes", "message"),
    [
        ("triton==1.0\n", "json", {}, "triton: the constraint is 1.0, found is"),
        ("triton", "json", {}, "no pin in it"),
        (f"triton=={version('triton')}\n", "a_module_of_nobody", {}, "import a_module_of_nobody"),
        (f"triton=={version('triton')}\n", "json", {"aiter_commit": "02575f1c3a"}, "accepted are the 40 digits"),
    ],
)
def test_anything_that_drifted_ends_the_build(
    tmp_path: Path, constraint: str, module: str, changes: dict[str, str], message: str
) -> None:
    done = finish(tmp_path, constraint, module, **changes)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "share" / "image.json").exists()
