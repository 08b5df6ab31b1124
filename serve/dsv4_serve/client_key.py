"""The API key that a command sends, from a file that holds nothing else."""

from __future__ import annotations

from pathlib import Path

from dsv4_serve.errors import UsageError


def read_key(path: Path | None) -> str | None:
    """The key in a file, None without one. UsageError when it cannot be read or is empty."""
    if path is None:
        return None
    try:
        lines = path.expanduser().read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UsageError(f"--key-file {path}: cannot be read: {reason}") from None
    if len(lines) != 1:
        raise UsageError(f"--key-file {path}: accepted is a file with one key in it, here are {len(lines)}")
    return lines[0]
