"""Counts that were measured before, by the code object that they belong to: emulation is slow and its result fixed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

FILE = "kernel_counts.json"


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where counts are kept: `$XDG_CACHE_HOME/dsv4-rocm`, `~/.cache/dsv4-rocm` by default."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dsv4-rocm"


class Counts:
    """Executed wave-instructions by sha256 of the code object, in a file that a damaged or absent one replaces."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / FILE
        self._known = self._read()

    def _read(self) -> dict[str, float]:
        try:
            found = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def of(self, digest: str, measure: Callable[[], float]) -> float:
        """The count of a code object, measured and kept if it is new."""
        if digest not in self._known:
            # Another process may have measured meanwhile.
            self._known = self._read() | self._known | {digest: measure()}
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(self._known))
            part.replace(self._file)
        return float(self._known[digest])
