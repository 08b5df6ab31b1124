"""API keys: read from a file, compared in constant time."""

from __future__ import annotations

import hmac
from pathlib import Path

from dsv4_serve.errors import PreflightError


def load_api_keys(path: str | None) -> tuple[str, ...]:
    """The keys of a file, one a line; blank lines and lines that begin with # are skipped. None: no keys.

    PreflightError when the file cannot be read or holds no key: the alternative would be to serve openly.
    """
    if path is None:
        return ()
    try:
        lines = Path(path).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise PreflightError(f"DSV4_API_KEYS_FILE={path}: cannot be read: {reason}") from error
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise PreflightError(f"DSV4_API_KEYS_FILE={path}: holds no key; accepted is one key a line")
    return keys


def key_accepted(offered: bytes, keys: tuple[str, ...]) -> bool:
    """Compares with every key, whichever matches, so that the time taken tells nothing."""
    matches = [hmac.compare_digest(offered, key.encode()) for key in keys]
    return any(matches)
