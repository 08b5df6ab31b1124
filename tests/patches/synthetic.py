"""A small project with two defects, patches for it, and probes that import it: as real ones do."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

from dsv4_serve.patches.edit_script import write_edits
from dsv4_serve.patches.probe import Finding
from dsv4_serve.patches.tree import sha256

TARGET = "toy/maths.py"
ORIGINAL = "def double(x):\n    return x + 1\n\n\ndef half(x):\n    return x - 1\n"
DOUBLED = ORIGINAL.replace("x + 1", "x * 2")
HALVED = DOUBLED.replace("x - 1", "x / 2")
OTHER = ORIGINAL + "# moved on\n"


def write_tree(directory: Path, text: str = ORIGINAL) -> Path:
    (directory / "toy").mkdir(parents=True, exist_ok=True)
    (directory / "toy" / "__init__.py").write_text("")
    (directory / TARGET).write_text(text)
    return directory


def write_patch(
    root: Path, name: str, before: str, after: str, probe: str, runtime: str | None = None, **changes: str
) -> Path:
    folder = root / "toy" / name
    folder.mkdir(parents=True)
    lines = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, *lines, autojunk=False)
    (folder / "maths.edits").write_text(write_edits(*lines, matcher.get_opcodes()))
    fields = {
        "why": f"{name} was wrong",
        "upstream": "toy#1",
        "author": "ours",
        "drop_when": "toy is right",
        "probe": f"patches.synthetic:{probe}",
        **changes,
    }
    head = "".join(f'{key} = "{value}"\n' for key, value in fields.items())
    if runtime:
        head += f'runtime = "{runtime}"\nmodules = ["toy.maths"]\n'
    hashes = f'before = "{sha256(before)}"\nafter = "{sha256(after)}"\n'
    path = folder / "patch.toml"
    path.write_text(f'{head}\n[[files]]\ntarget = "{TARGET}"\n{hashes}edits = "maths.edits"\n')
    return path


def write_patches(root: Path) -> Path:
    """`a-half` needs the result of `double`, whose name comes after it."""
    write_patch(root, "double", ORIGINAL, DOUBLED, "probe_double")
    write_patch(root, "a-half", DOUBLED, HALVED, "probe_half")
    return root


def probe_double(tree: Path) -> Finding:
    return _compare(tree, "double", 3, 6)


def probe_half(tree: Path) -> Finding:
    return _compare(tree, "half", 8, 4)


def probe_nothing(tree: Path) -> Finding:
    return Finding("unknown", "needs a GPU")


def probe_dies(tree: Path) -> Finding:
    raise RuntimeError("no such device")


def _compare(tree: Path, name: str, given: int, expected: int) -> Finding:
    sys.path.insert(0, str(tree))
    import importlib

    found = getattr(importlib.import_module("toy.maths"), name)(given)
    return Finding("sound" if found == expected else "broken", f"{name}({given}) is {found}")
