"""The thread that reads and writes the disk tier, so that the model never waits for a disk.

Reads overtake writes: a request waits for a read. Writes queue up to a limit; beyond it a page is not kept, which costs
a later hit, where waiting would cost every running request a token. What waits to be written can be read already.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from .disk import DiskTier
from .page_group import PageGroup

log = logging.getLogger("dsv4.embedded")

MAX_WAITING_WRITES = 256


@dataclass(eq=False)
class Fetch:
    """Groups on their way from the disk, in order; it ends at the first that cannot be had. `done` is set last."""

    prefixes: Sequence[bytes]
    groups: dict[bytes, PageGroup] = field(default_factory=dict)
    cancelled: bool = False
    done: bool = False


class IoThread:
    """Owns a DiskTier. `on_done` is called, on the thread, when a fetch is done."""

    def __init__(self, disk: DiskTier, on_done: Callable[[], None]) -> None:
        self._disk, self._on_done = disk, on_done
        self._reads: deque[Fetch] = deque()
        self._discards: deque[bytes] = deque()
        self._writes: OrderedDict[bytes, PageGroup] = OrderedDict()
        self._changed = threading.Condition()
        self._busy = self._stopping = self._failed = False
        self._thread = threading.Thread(target=self._run, name="disk-cache", daemon=True)
        self._thread.start()

    def write(self, group: PageGroup, wait: bool = False) -> bool:
        """Have a group written; False when too many wait already, or the thread has failed.

        With `wait` it blocks for a place instead.
        """
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._failed or len(self._writes) < MAX_WAITING_WRITES)
            if self._failed or len(self._writes) >= MAX_WAITING_WRITES:
                return False
            self._writes[group.prefix] = group
            self._changed.notify_all()
            return True

    def waiting(self, prefix: bytes) -> PageGroup | None:
        """A group that waits to be written."""
        with self._changed:
            return self._writes.get(prefix)

    def fetch(self, prefixes: Sequence[bytes]) -> Fetch:
        """Begin to read these."""
        fetch = Fetch(tuple(prefixes))
        with self._changed:
            fetch.done = self._failed
            if not self._failed:
                self._reads.append(fetch)
                self._changed.notify_all()
        return fetch

    def discard(self, prefix: bytes) -> None:
        """Have a group forgotten, before anything else."""
        with self._changed:
            self._writes.pop(prefix, None)
            self._discards.append(prefix)
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until everything that was asked for is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed or not (self._work or self._busy))

    def stop(self) -> None:
        """Finish what waits, then close the disk tier."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def _work(self) -> bool:
        return bool(self._discards or self._reads or self._writes)

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                job()
            self._disk.close()
        except Exception:
            # The engine goes on without this tier: what it cannot have is a miss.
            log.exception("disk cache: its thread failed; the cache is off until the next start")
            self._fail()
            self._disk.release()

    def _next(self) -> Callable[[], None] | None:
        """The next job, waiting for one; None when there is nothing left and the thread is to stop."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._work or self._stopping)
            self._busy = self._work
            if self._discards:
                return partial(self._disk.discard, self._discards.popleft())
            if self._reads:
                return partial(self._read, self._reads.popleft())
            if self._writes:
                return partial(self._write, next(iter(self._writes.values())))
            return None

    def _write(self, group: PageGroup) -> None:
        self._disk.put(group)
        with self._changed:
            if self._writes.get(group.prefix) is group:
                del self._writes[group.prefix]

    def _read(self, fetch: Fetch) -> None:
        remaining = iter(fetch.prefixes)
        try:
            for prefix in remaining:
                if fetch.cancelled:
                    return
                group = self.waiting(prefix) or self._disk.get(prefix)
                if group is None:
                    break
                fetch.groups[prefix] = group
        finally:
            fetch.done = True
            self._on_done()
        # The request computes these anew, and a page is written only where none stands: unread, a page of another
        # format would stay until a request of its own found it out.
        for prefix in remaining:
            self._disk.get(prefix)

    def _fail(self) -> None:
        with self._changed:
            self._failed = True
            reads, self._busy = list(self._reads), False
            self._reads.clear()
            self._writes.clear()
            self._changed.notify_all()
        for fetch in reads:
            fetch.done = True
        self._on_done()
