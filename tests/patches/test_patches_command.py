"""`dsv4 patches` from end to end on a synthetic tree, with probes that import it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsv4_serve.cli import app
from dsv4_serve.errors import CommandError
from dsv4_serve.patches.patch import load_patch
from dsv4_serve.patches.probe import run_probe
from dsv4_serve.profiles.load import REPOSITORY
from patches.synthetic import DOUBLED, HALVED, ORIGINAL, OTHER, TARGET, write_patch, write_patches, write_tree


@pytest.fixture(autouse=True)
def _probes_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY / 'tests'}")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


def patches(verb: str, *words: str) -> int:
    code: int = app(["patches", verb, *words], standalone_mode=False)
    return code


def on(tree: Path, root: Path) -> list[str]:
    return ["--project", "toy", "--tree", str(tree), "--patches", str(root)]


def test_apply_verify_and_apply_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree, root, record = write_tree(tmp_path / "tree"), write_patches(tmp_path / "patches"), tmp_path / "record.json"
    assert patches("probe", *on(tree, root), "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["patch"], row["probe"], row["action"]) for row in rows] == [
        ("toy/double", "broken", "apply"),
        ("toy/a-half", "broken", "apply"),
    ]
    assert patches("apply", *on(tree, root), "--record", str(record)) == 0
    assert (tree / TARGET).read_text() == HALVED
    assert [(r["probe"], r["probe_after"]) for r in json.loads(record.read_text())] == [("broken", "sound")] * 2
    assert patches("verify", *on(tree, root), "--record", str(record)) == 0
    assert all(row["proven"] for row in json.loads(record.read_text()))
    assert patches("apply", *on(tree, root)) == 0
    assert "toy/a-half: already applied (pre-image applied, probe sound)" in capsys.readouterr().out
    assert (tree / TARGET).read_text() == HALVED


def test_show_gives_the_diff_without_touching_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree, root = write_tree(tmp_path / "tree"), write_patches(tmp_path / "patches")
    assert patches("show", "--tree", str(tree), "--patches", str(root)) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"# toy/double\n--- a/{TARGET}\n+++ b/{TARGET}\n")
    assert "+    return x / 2\n" in shown
    assert (tree / TARGET).read_text() == ORIGINAL


def test_an_unknown_pre_image_with_the_defect_fails_and_is_named(tmp_path: Path) -> None:
    tree, root = write_tree(tmp_path / "tree", OTHER), write_patches(tmp_path / "patches")
    with pytest.raises(CommandError, match=r"toy/double: pre-image unknown, probe broken: double\(3\) is 4"):
        patches("apply", *on(tree, root))
    assert (tree / TARGET).read_text() == OTHER
    assert patches("probe", *on(tree, root)) == 1
    assert patches("verify", *on(tree, root)) == 1


def test_a_project_that_repaired_itself_needs_no_patch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree, root = write_tree(tmp_path / "tree", HALVED + "# theirs\n"), write_patches(tmp_path / "patches")
    assert patches("apply", *on(tree, root)) == 0
    assert capsys.readouterr().out.count("not needed (pre-image unknown, probe sound)") == 2


def test_a_patch_that_repairs_nothing_is_refused_after_applying(tmp_path: Path) -> None:
    root = tmp_path / "patches"
    write_patch(root, "double", ORIGINAL, ORIGINAL.replace("x + 1", "x + 2"), "probe_double")
    with pytest.raises(CommandError, match=r"pre-image applied, probe broken: double\(3\) is 5"):
        patches("apply", *on(write_tree(tmp_path / "tree"), root))


def test_a_probe_that_dies_tells_nothing(tmp_path: Path) -> None:
    patch = load_patch(write_patch(tmp_path, "double", ORIGINAL, DOUBLED, "probe_dies"))
    finding = run_probe(patch, tmp_path)
    assert finding.verdict == "unknown"
    assert finding.evidence == "the probe ended with status 1: RuntimeError: no such device"


def test_wrong_arguments_name_what_there_is(tmp_path: Path) -> None:
    root = write_patches(tmp_path / "patches")
    with pytest.raises(CommandError, match="no patches of project 'other'; there are toy"):
        patches("show", "--project", "other", "--patches", str(root))
    with pytest.raises(CommandError, match="not a directory"):
        patches("verify", *on(tmp_path / "none", root))
