"""What a tier holds, in the order of its last use, and who must go when it is full."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored page group: the prefix that names it, the one before it, its bytes, and whether it has a tail."""

    prefix: bytes
    parent: bytes
    size: int
    has_tail: bool


class Ledger:
    """At most `limit` entries, least recently used first. Any thread may read; one thread at a time may change."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._children: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, prefix: bytes) -> Entry | None:
        """The entry of that prefix."""
        with self._lock:
            return self._entries.get(prefix)

    def entries(self) -> list[Entry]:
        """All, least recently used first."""
        with self._lock:
            return list(self._entries.values())

    def add(self, entry: Entry) -> None:
        """Take an entry in as the most recently used one, in place of an older one of that prefix."""
        self.remove(entry.prefix)
        with self._lock:
            self._entries[entry.prefix] = entry
            self._children[entry.parent] += 1

    def remove(self, prefix: bytes) -> Entry | None:
        """Strike an entry out; returns it, if it was there."""
        with self._lock:
            entry = self._entries.pop(prefix, None)
            if entry is not None:
                self._children[entry.parent] -= 1
                if not self._children[entry.parent]:
                    del self._children[entry.parent]
            return entry

    def touch(self, prefixes: Iterable[bytes]) -> None:
        """These were used now."""
        with self._lock:
            for prefix in prefixes:
                if prefix in self._entries:
                    self._entries.move_to_end(prefix)

    def victim(self, room: int = 1) -> Entry | None:
        """Who must go before `room` more entries fit: the oldest that no other entry continues, None if they fit.

        A page whose parent is gone can never be reached again, so leaves go first.
        """
        with self._lock:
            if len(self._entries) + room <= self.limit:
                return None
            return next((e for e in self._entries.values() if e.prefix not in self._children), None)
