"""What was pulled: the repository, its commit, and every file's size and checksum, in the model's own directory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv4_serve.errors import CommandError

NAME = "dsv4-weights.json"
BLOCK = 8 << 20
Advance = Callable[[int], None]
"""Told the number of bytes since the last call."""


@dataclass(frozen=True, slots=True)
class File:
    """Size in bytes and checksum: sha256 for files that the hub keeps outside git, else git's own blob sha1."""

    size: int
    algorithm: str
    digest: str


@dataclass(frozen=True, slots=True)
class Record:
    """One pull."""

    repository: str
    revision: str
    files: Mapping[str, File]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    def write(self, directory: Path) -> None:
        files = {name: [file.size, file.algorithm, file.digest] for name, file in sorted(self.files.items())}
        data = {"repository": self.repository, "revision": self.revision, "files": files}
        (directory / NAME).write_text(json.dumps(data, indent=1) + "\n")

    @classmethod
    def read(cls, directory: Path) -> Record | None:
        """None where nothing was recorded. CommandError: the record cannot be read."""
        path = directory / NAME
        if not path.is_file():
            return None
        try:
            data = json.loads(path.read_text())
            files = {name: File(int(entry[0]), entry[1], entry[2]) for name, entry in data["files"].items()}
            return cls(data["repository"], data["revision"], files)
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CommandError(f"{path}: not a record of weights: {error}") from error


def problems(record: Record, directory: Path, advance: Advance) -> dict[str, str]:
    """What is wrong with each file, by name; every byte is read. Files that nobody recorded are left alone."""
    found = {}
    for name, file in record.files.items():
        path = directory / name
        if not path.is_file():
            found[name] = "missing"
        elif path.stat().st_size != file.size:
            found[name] = f"{path.stat().st_size} bytes, recorded are {file.size}"
        elif (digest := _digest(path, file, advance)) != file.digest:
            found[name] = f"{file.algorithm} {digest}, recorded is {file.digest}"
    return found


def _digest(path: Path, file: File, advance: Advance) -> str:
    digest = hashlib.new("sha256" if file.algorithm == "sha256" else "sha1", usedforsecurity=False)
    if file.algorithm == "git":
        digest.update(f"blob {file.size}\0".encode())
    with path.open("rb") as opened:
        while block := opened.read(BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()
