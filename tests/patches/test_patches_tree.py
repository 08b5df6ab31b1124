"""The strict applier, on a synthetic tree."""

from __future__ import annotations

import py_compile
from pathlib import Path

import pytest

from dsv4_serve.patches.decide import decide
from dsv4_serve.patches.patch import PatchError, load_patch, load_patches
from dsv4_serve.patches.probe import Finding, run_probe
from dsv4_serve.patches.tree import apply_patch, in_order, state
from dsv4_serve.patches.verify import installed_tree, verify
from dsv4_serve.profiles.load import REPOSITORY
from patches.synthetic import DOUBLED, HALVED, ORIGINAL, OTHER, TARGET, write_patch, write_patches, write_tree


def always(verdict: str) -> object:
    return lambda patch, tree, runtime: Finding(verdict, "as told")  # type: ignore[arg-type]


def test_patches_apply_in_the_order_of_their_hashes_and_only_once(tmp_path: Path) -> None:
    tree, patches = write_tree(tmp_path / "tree"), load_patches(write_patches(tmp_path / "patches"))
    assert [patch.name for patch in in_order(patches)] == ["double", "a-half"]
    assert [state(tree, patch, patches) for patch in in_order(patches)] == ["fits", "fits"]
    changes = [change for patch in in_order(patches) for change in apply_patch(tree, patch)]
    assert (tree / TARGET).read_text() == HALVED
    assert "-    return x + 1\n+    return x * 2\n" in changes[0].diff()
    stamp = (tree / TARGET).stat().st_mtime_ns
    assert apply_patch(tree, in_order(patches)[1]) == []
    assert [state(tree, patch, patches) for patch in patches] == ["applied", "applied"]
    assert (tree / TARGET).stat().st_mtime_ns == stamp


@pytest.mark.parametrize("text", [OTHER, ORIGINAL.replace("\n", "\r\n"), ORIGINAL + " ", ""])
def test_any_other_pre_image_is_an_error_and_nothing_is_written(tmp_path: Path, text: str) -> None:
    tree, patches = write_tree(tmp_path / "tree", text), load_patches(write_patches(tmp_path / "patches"))
    (tree / TARGET).write_bytes(text.encode())
    assert state(tree, patches[1], patches) == "unknown"
    with pytest.raises(PatchError, match=r"has sha256 [0-9a-f]{64}; accepted is [0-9a-f]{64}, nothing else"):
        apply_patch(tree, patches[1])
    assert (tree / TARGET).read_bytes() == text.encode()


def test_a_script_that_does_not_give_the_promised_result_is_refused(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    path = write_patch(tmp_path / "patches", "double", ORIGINAL, DOUBLED, "probe_double")
    script = path.parent / "maths.edits"
    script.write_text(script.read_text().replace("x * 2", "x * 3"))
    with pytest.raises(PatchError, match=r"would become [0-9a-f]{64}; its patch.toml says"):
        apply_patch(tree, load_patch(path))
    assert (tree / TARGET).read_text() == ORIGINAL


def test_a_missing_file_is_an_unknown_pre_image(tmp_path: Path) -> None:
    patches = load_patches(write_patches(tmp_path / "patches"))
    assert state(tmp_path, patches[0], patches) == "unknown"
    with pytest.raises(PatchError, match=r"maths\.py"):
        apply_patch(tmp_path, patches[0])


def test_hashes_in_a_circle_are_refused(tmp_path: Path) -> None:
    write_patch(tmp_path, "there", ORIGINAL, DOUBLED, "probe_double")
    write_patch(tmp_path, "back", DOUBLED, ORIGINAL, "probe_double")
    with pytest.raises(PatchError, match="toy/back, toy/there: each needs another's result first"):
        in_order(load_patches(tmp_path))


@pytest.mark.parametrize(
    ("text", "verdict", "runtime", "action"),
    [
        (ORIGINAL, "broken", None, "apply"),
        (ORIGINAL, "unknown", None, "apply"),
        (DOUBLED, "sound", None, "already applied"),
        (DOUBLED, "unknown", None, "already applied"),
        (DOUBLED, "broken", None, "refuse"),
        (OTHER, "sound", None, "not needed"),
        # As told, the runtime patch does not help.
        (OTHER, "broken", "m:f", "refuse"),
        (OTHER, "unknown", "m:f", "apply at run time"),
        (OTHER, "broken", None, "refuse"),
        (OTHER, "unknown", None, "refuse"),
    ],
)
def test_probe_and_pre_image_decide(tmp_path: Path, text: str, verdict: str, runtime: str | None, action: str) -> None:
    tree = write_tree(tmp_path / "tree", text)
    write_patch(tmp_path / "patches", "double", ORIGINAL, DOUBLED, "probe_double", runtime)
    (decision,) = decide(tree, load_patches(tmp_path / "patches"), always(verdict))  # type: ignore[arg-type]
    assert decision.action == action


def test_verify_finds_stale_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{REPOSITORY / 'tests'}")
    tree, root = write_tree(tmp_path / "tree"), tmp_path / "patches"
    write_patch(root, "double", ORIGINAL, DOUBLED, "probe_double")
    patches = load_patches(root)
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tree / TARGET), invalidation_mode=unchecked, doraise=True)
    apply_patch(tree, patches[0])
    (proof,) = verify(tree, patches, always("unknown"))  # type: ignore[arg-type]
    assert proof.problems == (f"{TARGET}: an import would run stale bytecode",)
    # The probe sees it as well: it runs what an import runs.
    assert run_probe(patches[0], tree).verdict == "broken"
    py_compile.compile(str(tree / TARGET), invalidation_mode=unchecked, doraise=True)
    (proof,) = verify(tree, patches, run_probe)
    assert (proof.problems, proof.decision.action) == ((), "already applied")


def test_the_installed_tree_is_found_without_an_import() -> None:
    import dsv4_serve

    assert installed_tree("dsv4_serve") == Path(str(dsv4_serve.__file__)).parents[1]
    with pytest.raises(PatchError, match="aiter_of_nobody: not installed here"):
        installed_tree("aiter_of_nobody")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"why": ""}, "why = '': accepted is a non-empty text"),
        ({"author": "them"}, "author = 'them': accepted is ours or theirs"),
        ({"whose": "x"}, "whose: no such field; accepted are author, drop_when"),
        ({"modules": "toy"}, r"modules = 'toy': accepted is a list of module names, beside runtime only"),
    ],
)
def test_refused_patch_files(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    path = write_patch(tmp_path, "double", ORIGINAL, DOUBLED, "probe_double", **changes)
    with pytest.raises(PatchError, match=message):
        load_patch(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (TARGET, "../out.py", "accepted is a path inside the tree"),
        ('before = "', 'before = "0', "accepted is a sha256 of 64 digits"),
        ("maths.edits", "none.edits", "none.edits: "),
        ("[[files]]", "[[other]]", "other: no such field"),
    ],
)
def test_refused_file_entries(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write_patch(tmp_path, "double", ORIGINAL, DOUBLED, "probe_double")
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(PatchError, match=message):
        load_patch(path)
