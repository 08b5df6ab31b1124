"""Runtime patches: applied in the moment of import, by every interpreter, or nothing starts."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dsv4_serve.cli import app
from dsv4_serve.errors import CommandError
from dsv4_serve.patches import at_import
from dsv4_serve.patches.at_import import RuntimePatch, RuntimePatchError
from dsv4_serve.profiles.load import REPOSITORY
from patches.synthetic import DOUBLED, ORIGINAL, OTHER, write_patch, write_tree

HERE = "patches.test_patches_at_import"
DOUBLE = RuntimePatch("toy/double", ("toy.maths",), f"{HERE}:repair_double")


def repair_double(module: ModuleType, defects: frozenset[str]) -> None:
    module.double = lambda x: 2 * x  # type: ignore[attr-defined]


def repair_half(module: ModuleType, defects: frozenset[str]) -> None:
    module.half = lambda x: sorted(defects)  # type: ignore[attr-defined]


def repair_nothing(module: ModuleType, defects: frozenset[str]) -> None:
    """Does not help: the probe finds the same defect behind it."""


def repair_wrongly(module: ModuleType, defects: frozenset[str]) -> None:
    raise AttributeError("no treble")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    tree = write_tree(tmp_path / "tree", OTHER)
    monkeypatch.syspath_prepend(str(tree))
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY / 'tests'}")
    yield tree
    at_import.uninstall()
    for name in ("toy", "toy.maths"):
        sys.modules.pop(name, None)


def test_a_module_is_patched_when_it_is_imported(toy: Path) -> None:
    half = RuntimePatch("toy/half", ("toy.maths",), f"{HERE}:repair_half", frozenset({"b", "a"}))
    at_import.install([DOUBLE, half])
    assert at_import.installed() == ["toy/double", "toy/half"]
    maths = importlib.import_module("toy.maths")
    assert (maths.double(3), maths.half(3)) == (6, ["a", "b"])
    assert maths.__dsv4_patches__ == ["toy/double", "toy/half"]
    # Whoever asks the loader still gets the source: Triton compiles from it.
    assert inspect.getsource(maths) == OTHER


def test_a_patch_that_does_not_fit_stops_the_import(toy: Path) -> None:
    at_import.install([RuntimePatch("toy/double", ("toy.maths",), f"{HERE}:repair_wrongly")])
    with pytest.raises(RuntimePatchError, match=r"toy/double: toy\.maths cannot be patched: no treble"):
        importlib.import_module("toy.maths")


def test_a_module_that_is_there_already_is_refused(toy: Path) -> None:
    importlib.import_module("toy.maths")
    with pytest.raises(RuntimePatchError, match=r"toy\.maths was imported before its patch was installed"):
        at_import.install([DOUBLE])


def test_every_interpreter_reads_the_record(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record, folder = tmp_path / "applied.json", tmp_path / "site"
    folder.mkdir()
    rows = [
        {"patch": "toy/double", "action": "apply at run time", "runtime": DOUBLE.describe()},
        {"patch": "toy/half", "action": "apply", "runtime": None},
    ]
    record.write_text(json.dumps(rows))
    assert at_import.recorded(record) == (DOUBLE,)
    assert at_import.recorded(tmp_path / "none.json") == ()
    assert at_import.main(["--site", str(folder), "--record", str(record)]) == 0
    as_site_packages(folder, monkeypatch)
    program = f"import sys; sys.path.insert(0, {str(toy)!r}); from toy.maths import double; print(double(3))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "6\n"
    assert at_import.installed_at_start() == ["toy/double"]


def as_site_packages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreters started from here read the .pth files of `folder`."""
    (folder / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(folder)!r})\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{REPOSITORY / 'tests'}")


def patches(verb: str, tree: Path, root: Path, *words: str) -> int:
    where = ["--project", "toy", "--tree", str(tree), "--patches", str(root)]
    code: int = app(["patches", verb, *where, *words], standalone_mode=False)
    return code


def with_runtime(root: Path, function: str) -> Path:
    write_patch(root, "double", ORIGINAL, DOUBLED, "probe_double", f"{HERE}:{function}")
    return root


def test_an_unknown_pre_image_is_repaired_at_run_time(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, record, folder = with_runtime(tmp_path / "patches", "repair_double"), tmp_path / "applied.json", tmp_path
    assert patches("apply", toy, root, "--record", str(record)) == 0
    assert "apply at run time (pre-image unknown, probe sound)" in capsys.readouterr().out
    (row,) = json.loads(record.read_text())
    assert (row["probe"], row["probe_after"]) == ("broken", "sound")
    assert row["runtime"] == {"patch": "toy/double", "function": f"{HERE}:repair_double"} | {
        "modules": ["toy.maths"],
        "defects": [],
    }
    assert (toy / "toy/maths.py").read_text() == OTHER
    # Nothing in this environment would apply it: that is no proof.
    assert patches("verify", toy, root) == 1
    assert "a fresh interpreter does not apply it on import" in capsys.readouterr().out
    at_import.main(["--site", str(folder), "--record", str(record)])
    as_site_packages(folder, monkeypatch)
    assert patches("verify", toy, root) == 0


def test_a_runtime_patch_that_does_not_help_is_refused(toy: Path, tmp_path: Path) -> None:
    root = with_runtime(tmp_path / "patches", "repair_nothing")
    with pytest.raises(CommandError, match=r"probe broken: double\(3\) is 4; with the runtime patches broken"):
        patches("apply", toy, root)
