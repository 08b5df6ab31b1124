"""What makes an image that image: its pins and every source that goes into it, as one short name."""

from __future__ import annotations

import hashlib
from pathlib import Path

DIGITS = 16
SOURCES = ("versions.lock", "Dockerfile.*", "docker/*", "patches/**/*", "kernels/**/*.py", "serve/**/*.py")


def identity(root: Path, *more: str) -> str:
    """16 hexadecimal digits over the sources below `root`, names included, and over `more`, the engine for example."""
    digest = hashlib.sha256("\0".join(more).encode())
    for path in sorted({path for pattern in SOURCES for path in root.glob(pattern) if path.is_file()}):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:DIGITS]
