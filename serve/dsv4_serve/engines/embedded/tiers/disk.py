"""The disk tier: one file a page group in a directory of its own, and an index of them. It survives restarts.

Page files are not synced, the index is, after the file that a line is about. What a loss of power takes from a page
file shows in its checksums, and then it is a miss.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ..options import OptionError
from .index_file import IndexFile
from .ledger import Entry, Ledger
from .page_file import PageRefusedError, Reason, decode, encode
from .page_group import PageGroup
from .tier_counters import TierCounters

log = logging.getLogger("dsv4.embedded")

WARN_SECONDS = 60.0
SUFFIX = ".page"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskTier:
    """A directory that one process owns. `put`, `get` and `close` belong to one thread; reading `ledger` to any.

    Nothing that the disk does raises: it costs hits, which the counters tell, never answers.
    """

    name = "disk"

    def __init__(
        self, directory: Path, groups: int, fingerprint: str, sizes: Mapping[str, int], counters: TierCounters
    ) -> None:
        """Opens the directory, making it if needed, for so many groups. OptionError when it cannot be used."""
        self._fingerprint, self._sizes, self._counters = fingerprint, sizes, counters
        self.ledger = Ledger(groups)
        self.directory = directory
        self._warned = -WARN_SECONDS
        try:
            # Pages and token ids are what users wrote: nobody else's to read.
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(directory / "lock")
            self._index = IndexFile(directory / "index")
            self._recover()
        except BlockingIOError:
            raise OptionError(
                f"disk_dir={directory}: another process uses it; accepted is a directory of its own"
            ) from None
        except OSError as error:
            raise OptionError(f"disk_dir={directory}: {error.strerror}; accepted is a writable directory") from None

    def put(self, group: PageGroup) -> None:
        """Keep a group, unless it is kept already. One with a tail replaces one without."""
        known = self.ledger.get(group.prefix)
        if known is not None and (known.has_tail or not group.has_tail):
            return
        data = encode(group, self._fingerprint)
        entry = Entry(group.prefix, group.parent, len(data), group.has_tail)
        try:
            if known is not None:
                self._drop(known)
            while (victim := self.ledger.victim()) is not None:
                self._drop(victim)
                self._counters.evicted(self.name)
            self._write(entry, data)
        except OSError as error:
            self._counters.unsaved("full" if error.errno in _FULL else "unwritable")
            self._warn(error)
        else:
            self._counters.stored(self.name)

    def get(self, prefix: bytes) -> PageGroup | None:
        """The group of that prefix; None when it is not there or must not be used, which is counted by reason."""
        entry = self.ledger.get(prefix)
        if entry is None:
            return None
        try:
            group = decode(self._read(entry), prefix, self._fingerprint, self._sizes)
        except PageRefusedError as refusal:
            self._refuse(entry, refusal.reason, str(refusal))
            return None
        self.ledger.touch([prefix])
        return group

    def discard(self, prefix: bytes) -> None:
        """Forget a group, if it is here."""
        entry = self.ledger.get(prefix)
        if entry is not None:
            self._strike(entry)

    def close(self) -> None:
        """Write the index in order of last use and let the directory go."""
        try:
            self._index.rewrite(self.ledger.entries())
        except OSError as error:
            self._warn(error)
        self.release()

    def release(self) -> None:
        """Let the directory go as it is."""
        self._lock.close()

    def _path(self, prefix: bytes) -> Path:
        return self.directory / (prefix.hex() + SUFFIX)

    def _write(self, entry: Entry, data: bytes) -> None:
        path = self._path(entry.prefix)
        fresh = path.with_suffix(".new")
        try:
            fresh.write_bytes(data)
            fresh.replace(path)
            self._index.stored(entry)
        except OSError:
            fresh.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise
        self.ledger.add(entry)
        if self._index.is_long(len(self.ledger)):
            self._index.rewrite(self.ledger.entries())

    def _read(self, entry: Entry) -> bytes:
        try:
            with self._path(entry.prefix).open("rb") as file:
                # A byte more than there should be, and no more, whatever the file has become.
                data = file.read(entry.size + 1)
        except FileNotFoundError:
            raise PageRefusedError("missing", "its file is gone") from None
        except OSError as error:
            raise PageRefusedError("unreadable", str(error.strerror)) from None
        return data

    def _drop(self, entry: Entry) -> None:
        """The index first: a file that it does not know goes at the next start, a line without a file is a miss."""
        self.ledger.remove(entry.prefix)
        self._index.removed(entry.prefix)
        self._path(entry.prefix).unlink(missing_ok=True)

    def _refuse(self, entry: Entry, reason: Reason, what: str) -> None:
        self._counters.refused(reason)
        log.warning("disk cache: page %s is not used: %s", entry.prefix.hex()[:16], what)
        self._strike(entry)

    def _strike(self, entry: Entry) -> None:
        try:
            self._drop(entry)
        except OSError as error:
            self._warn(error)

    def _recover(self) -> None:
        """Take over what the index knows and has a file of that length; remove every other page file."""
        entries, damaged = self._index.read()
        files = {path.name: path for path in self.directory.iterdir() if path.suffix in (SUFFIX, ".new")}
        for entry in entries:
            path = files.pop(self._path(entry.prefix).name, None)
            if path is None:
                self._counters.refused("missing")
            else:
                self.ledger.add(entry)
        for stray in files.values():
            stray.unlink(missing_ok=True)
        if damaged:
            self._counters.refused("index", damaged)
            log.warning("disk cache: %d lines of %s are damaged and were skipped", damaged, self.directory / "index")
        while (victim := self.ledger.victim(0)) is not None:
            self.ledger.remove(victim.prefix)
            self._path(victim.prefix).unlink(missing_ok=True)
        self._index.rewrite(self.ledger.entries())

    def _warn(self, error: OSError) -> None:
        """Says what fails, at most once a minute: it fails for every page."""
        now = time.monotonic()
        if now - self._warned < WARN_SECONDS:
            return
        self._warned = now
        log.warning(
            "disk cache: %s: %s; pages are not kept there while this lasts, requests are served all the same",
            self.directory,
            error.strerror,
        )


def _locked(path: Path) -> BinaryIO:
    """The lock file, held; the kernel lets it go with the process. BlockingIOError when another process holds it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
