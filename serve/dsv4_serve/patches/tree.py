"""A source tree and the patches on it: what is applied, what fits, and the strict applier.

Patches of one file form a chain by their hashes: the result of one is the pre-image of the next. So a file's hash says
which of them it holds, and applying them again changes nothing.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dsv4_serve.patches.edit_script import EditError, apply_edits
from dsv4_serve.patches.patch import FileEdit, Patch, PatchError

State = Literal["applied", "fits", "unknown"]
"""`fits`: the exact pre-image is there, or comes to be once the patches before it in the chain are applied."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file before and after a patch, in full."""

    target: str
    before: str
    after: str

    def diff(self) -> str:
        """A unified diff for human review."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, f"a/{self.target}", f"b/{self.target}"))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read(tree: Path, target: str) -> str:
    """A file of the tree, its newlines as they are. PatchError: it is not there, or not text."""
    try:
        return (tree / target).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise PatchError(f"{tree / target}: {error}") from error


def state(tree: Path, patch: Patch, patches: Sequence[Patch]) -> State:
    """Where the tree stands with `patch`; `patches` are all of its project."""
    states = {_state(tree, edit, patches) for edit in patch.files}
    if not states or "unknown" in states:
        return "unknown"
    return "applied" if states == {"applied"} else "fits"


def apply_patch(tree: Path, patch: Patch) -> list[Change]:
    """Apply one patch whose pre-images are there; nothing is written unless every file fits. A no-op when applied.

    PatchError names the file, the hash that was found and the one that is accepted.
    """
    changes = [change for edit in patch.files if (change := _change(tree, patch, edit))]
    for change in changes:
        (tree / change.target).write_bytes(change.after.encode())
    return changes


def in_order(patches: Sequence[Patch]) -> list[Patch]:
    """Patches with each after those that make its pre-images. PatchError when hashes go round in a circle."""
    makers = {edit.after: patch.key for patch in patches for edit in patch.files}
    waiting, ordered = list(patches), list[Patch]()
    while waiting:
        done = {patch.key for patch in ordered}
        ready = [p for p in waiting if all(makers.get(e.before, p.key) in done | {p.key} for e in p.files)]
        if not ready:
            raise PatchError(f"{', '.join(patch.key for patch in waiting)}: each needs another's result first")
        ordered += ready
        waiting = [patch for patch in waiting if patch not in ready]
    return ordered


def _change(tree: Path, patch: Patch, edit: FileEdit) -> Change | None:
    text = read(tree, edit.target)
    found = sha256(text)
    if found == edit.after:
        return None
    if found != edit.before:
        raise PatchError(
            f"{patch.key}: {tree / edit.target} has sha256 {found}; accepted is {edit.before}, nothing else"
        )
    try:
        after = apply_edits(text, edit.edits)
    except EditError as error:
        raise PatchError(f"{patch.key}: {edit.target}: {error}") from error
    if sha256(after) != edit.after:
        raise PatchError(f"{patch.key}: {edit.target} would become {sha256(after)}; its patch.toml says {edit.after}")
    return Change(edit.target, text, after)


def _state(tree: Path, edit: FileEdit, patches: Sequence[Patch]) -> State:
    if not (tree / edit.target).is_file():
        return "unknown"
    found = sha256(read(tree, edit.target))
    steps = [other for patch in patches for other in patch.files if other.target == edit.target]
    if edit.after in _backwards(found, steps):
        return "applied"
    return "fits" if found in _backwards(edit.before, steps) else "unknown"


def _backwards(found: str, steps: Sequence[FileEdit]) -> Iterator[str]:
    """The hash itself, and those of the file before each patch that led to it."""
    yield found
    before = {step.after: step.before for step in steps}
    seen = {found}
    while (found := before.get(found, "")) and found not in seen:
        seen.add(found)
        yield found
