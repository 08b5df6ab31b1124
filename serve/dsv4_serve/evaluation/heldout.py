"""Held-out English prose: docstrings of those files of Python's own library that the tiny model was not trained on.

The split is by a hash of the file's name, the same as in training, so it needs no data file: about one file in twenty.
The text differs a little between Python versions; results name the version and the text's digest.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SKIPPED = frozenset({"site-packages", "dist-packages", "lib2to3", "__pycache__", "test", "tests", "idlelib"})
SHORTEST = 200


def is_heldout(name: str) -> bool:
    """Whether the library file of this name (posix, relative) was kept from training."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20 == 0


def _docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text) >= SHORTEST:
                yield text


def heldout_text(wanted: int) -> bytes:
    """The first `wanted` bytes of held-out prose, or all there is."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found = bytearray()
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if SKIPPED & set(name.parts) or not is_heldout(name.as_posix()):
            continue
        for text in _docstrings(path):
            found += text.encode() + b"\n\n"
        if len(found) >= wanted:
            break
    return bytes(found[:wanted])
