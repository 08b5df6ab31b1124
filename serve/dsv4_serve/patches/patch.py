"""Patches as data: patches/<project>/<name>/patch.toml, and the edit scripts beside it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4_serve.errors import CommandError
from dsv4_serve.patches.edit_script import Edit, EditError, parse_edits

SHA256 = re.compile(r"[0-9a-f]{64}")
TEXTS = ("why", "upstream", "author", "drop_when", "probe")
AUTHORS = ("ours", "theirs")


class PatchError(CommandError):
    """A patch that is not well-formed, or a tree that it does not fit."""


@dataclass(frozen=True, slots=True)
class FileEdit:
    """One file of the tree: sha256 of the exact pre-image and of the result, and the edits between them."""

    target: str
    before: str
    after: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Patch:
    """`probe` and `runtime` are `module:function`; `runtime` repairs each of `modules` on import where no edit fits."""

    project: str
    name: str
    why: str
    upstream: str
    author: str
    drop_when: str
    probe: str
    runtime: str | None
    modules: tuple[str, ...]
    files: tuple[FileEdit, ...]

    @property
    def key(self) -> str:
        return f"{self.project}/{self.name}"


def load_patches(root: Path, project: str | None = None) -> tuple[Patch, ...]:
    """All patches under `root`, sorted by project and name. PatchError names the file and the field."""
    found = sorted(root.glob(f"{project or '*'}/*/patch.toml"))
    if project is not None and not found:
        names = ", ".join(sorted({path.parents[1].name for path in root.glob("*/*/patch.toml")}))
        raise PatchError(f"{root}: no patches of project {project!r}; there are {names or 'none'}")
    return tuple(load_patch(path) for path in found)


def load_patch(path: Path) -> Patch:
    """One patch from its patch.toml."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise PatchError(f"{path}: {error}") from error
    known = {*TEXTS, "runtime", "modules", "files"}
    if unknown := sorted(set(data) - known):
        raise PatchError(f"{path}: {', '.join(unknown)}: no such field; accepted are {', '.join(sorted(known))}")
    texts = {name: _text(path, data, name) for name in TEXTS}
    if texts["author"] not in AUTHORS:
        raise PatchError(f"{path}: author = {texts['author']!r}: accepted is {' or '.join(AUTHORS)}")
    files = tuple(_file(path, entry) for entry in data.get("files", ()))
    runtime = _text(path, data, "runtime") if "runtime" in data else None
    if not files and runtime is None:
        raise PatchError(f"{path}: neither files nor runtime: a patch changes something")
    modules = _modules(path, data.get("modules", []), runtime is not None)
    return Patch(path.parents[1].name, path.parent.name, runtime=runtime, modules=modules, files=files, **texts)


def _modules(path: Path, value: Any, wanted: bool) -> tuple[str, ...]:
    names = value if isinstance(value, list) and all(isinstance(name, str) and name for name in value) else []
    if bool(names) != wanted or len(names) != len(value):
        raise PatchError(f"{path}: modules = {value!r}: accepted is a list of module names, beside runtime only")
    return tuple(names)


def _file(path: Path, entry: dict[str, Any]) -> FileEdit:
    fields = {name: _text(path, entry, name) for name in ("target", "before", "after", "edits")}
    target = Path(fields["target"])
    if target.is_absolute() or ".." in target.parts:
        raise PatchError(f"{path}: target = {fields['target']!r}: accepted is a path inside the tree")
    for name in ("before", "after"):
        if not SHA256.fullmatch(fields[name]):
            raise PatchError(f"{path}: {name} = {fields[name]!r}: accepted is a sha256 of 64 digits")
    script = path.parent / fields["edits"]
    try:
        edits = parse_edits(script.read_text())
    except (OSError, EditError) as error:
        raise PatchError(f"{script}: {error}") from error
    return FileEdit(fields["target"], fields["before"], fields["after"], edits)


def _text(path: Path, data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value.strip():
        raise PatchError(f"{path}: {name} = {value!r}: accepted is a non-empty text")
    return value
