"""The index of the disk tier: a journal of what was stored and removed, one checked line each, synced to the disk.

A line is a CRC-32 in hexadecimal, a space, and JSON. A process that dies while it writes leaves half a line: whatever
does not check is skipped and counted, the lines around it hold. Closing writes the journal anew, in order of last use.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from .ledger import Entry

REWRITE_AT = 4096
"""Lines beyond twice the entries that make the journal be written anew."""


class IndexFile:
    """One journal. OSError of the file system passes through; after one the journal is as it was before the call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = 0

    def read(self) -> tuple[list[Entry], int]:
        """Entries, least recently used first, and the number of damaged lines."""
        entries: OrderedDict[bytes, Entry] = OrderedDict()
        damaged = 0
        for line in self._read_lines():
            try:
                prefix, entry = _parsed(line)
            except ValueError:
                damaged += 1
                continue
            entries.pop(prefix, None)
            if entry is not None:
                entries[prefix] = entry
        return list(entries.values()), damaged

    def stored(self, entry: Entry) -> None:
        """Write down that an entry's file is there."""
        self._append(_stored(entry))

    def removed(self, prefix: bytes) -> None:
        """Write down that an entry's file goes."""
        self._append(_line({"prefix": prefix.hex()}))

    def is_long(self, entries: int) -> bool:
        """Whether most of its lines are history, so that it should be written anew."""
        return self._lines > 2 * entries + REWRITE_AT

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replace the journal by one of these entries, least recently used first."""
        lines = [_stored(entry) for entry in entries]
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        sync_directory(self._path.parent)
        self._lines = len(lines)

    def _read_lines(self) -> list[bytes]:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        self._lines = len(lines)
        return lines

    def _append(self, line: bytes) -> None:
        # Unbuffered: a buffer that a full disk refused would be written again when the file is closed.
        with self._path.open("ab", buffering=0) as file:
            before = file.tell()
            # A journal whose last line was cut gets its line end first.
            whole = line if self._whole(before) else b"\n" + line
            try:
                if file.write(whole) != len(whole):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
                os.fsync(file.fileno())
            except OSError:
                os.truncate(self._path, before)
                raise
        self._lines += 1

    def _whole(self, size: int) -> bool:
        if size == 0:
            return True
        with self._path.open("rb") as file:
            file.seek(size - 1)
            return file.read(1) == b"\n"


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stored(entry: Entry) -> bytes:
    return _line(
        {
            "prefix": entry.prefix.hex(),
            "parent": entry.parent.hex(),
            "bytes": entry.size,
            "tail": entry.has_tail,
        }
    )


def _line(record: dict[str, object]) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parsed(line: bytes) -> tuple[bytes, Entry | None]:
    """The prefix that a line is about, and its entry, None when it went. ValueError for a damaged line."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError("its checksum differs")
    record = json.loads(text)
    try:
        prefix = bytes.fromhex(record["prefix"])
        if "bytes" not in record:
            return prefix, None
        return prefix, Entry(prefix, bytes.fromhex(record["parent"]), int(record["bytes"]), bool(record["tail"]))
    except KeyError as error:
        raise ValueError(f"it has no field {error}") from None
