"""API keys: read from a file, read again when it changes, compared in constant time, kept as digests only."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from dsv4_serve.errors import PreflightError
from dsv4_serve.logs import log

Stamp = tuple[int, int, int]


class ApiKeys:
    """The keys of a file, one a line; blank lines and lines that begin with # are skipped. No path: no keys.

    PreflightError when the file cannot be read or holds no key: the alternative would be to serve openly. A file that
    becomes like that later changes nothing: the keys of before stay, and the log says why.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = None if path is None else Path(path).expanduser()
        self._stamp = self._look()
        self._digests = () if self._path is None else _read(self._path)

    @property
    def required(self) -> bool:
        return self._path is not None

    def accept(self, offered: bytes) -> bool:
        """Whether `offered` is a key now. Compares with every one, whichever matches: the time taken tells nothing."""
        self._follow()
        digest = _digest(offered)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)

    def _follow(self) -> None:
        stamp = self._look()
        if self._path is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._digests = _read(self._path)
        except PreflightError as error:
            log.error("%s; the keys of before stay", error)
        else:
            log.info("the API keys were read again: %d", len(self._digests))

    def _look(self) -> Stamp | None:
        """What changes when the file does: replaced (a mounted secret is a link that moves), or written in place."""
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns, found.st_size)


def _read(path: Path) -> tuple[bytes, ...]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise PreflightError(f"DSV4_API_KEYS_FILE={path}: cannot be read: {reason}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise PreflightError(f"DSV4_API_KEYS_FILE={path}: holds no key; accepted is one key a line")
    return tuple(_digest(key.encode()) for key in keys)


def _digest(key: bytes) -> bytes:
    # Digests have one length: comparing keys themselves would tell that of each.
    return hashlib.sha256(key).digest()
