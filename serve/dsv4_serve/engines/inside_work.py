"""What the index path did in this process of an engine: launches and rows scored, those of replayed graphs included.

Python runs when a graph is captured and not when it is replayed, so each graph remembers what its capture launched, and
a replay adds that. What a replay runs in Python nevertheless (the eager parts of a graph) has counted itself.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

Launch = tuple[str, str, str]
"""Operation, phase, backend."""
Rows = tuple[str, str, str]
"""Operation, phase, scope: `whole` contexts, or `candidates` of V4.1's blocks."""


@dataclass(frozen=True)
class Work:
    """Totals of launches and of rows scored."""

    launches: Counter[Launch] = field(default_factory=Counter)
    rows: Counter[Rows] = field(default_factory=Counter)

    def __sub__(self, other: Work) -> Work:
        """What is here and not in `other`; never less than nothing, so that totals only grow."""
        return Work(self.launches - other.launches, self.rows - other.rows)

    def times(self, count: int) -> Work:
        launches = {key: n * count for key, n in self.launches.items()}
        return Work(Counter(launches), Counter({key: n * count for key, n in self.rows.items()}))

    def add(self, other: Work) -> None:
        self.launches.update(other.launches)
        self.rows.update(other.rows)


_lock = threading.Lock()
_rows: Counter[Rows] = Counter()
_graphs: dict[Hashable, Work] = {}
_replays: Counter[Hashable] = Counter()
_replayed = Work()


def count_rows(op: str, phase: str, scope: str, rows: int) -> None:
    """One launch scored so many rows."""
    with _lock:
        _rows[op, phase, scope] += rows


def in_python() -> Work:
    """What ran outside of replays, captures included."""
    from dsv4_kernels import counters

    launches = Counter(counters.snapshot().launches)
    with _lock:
        return Work(launches, Counter(_rows))


def total() -> Work:
    """All launches since the process started. A capture counts as one, though it only records."""
    found = in_python()
    with _lock:
        found.add(_replayed)
        for key, count in list(_replays.items()):
            found.add(_graphs.get(key, Work()).times(count))
    return found


def captured(graph: Hashable, launched: Work) -> None:
    """`graph` was captured, anew if it is known: from now on a replay of it launches this."""
    with _lock:
        # What an earlier graph of this key launched stays counted.
        _replayed.add(_graphs.get(graph, Work()).times(_replays.pop(graph, 0)))
        _graphs[graph] = launched


def is_captured(graph: Hashable) -> bool:
    return graph in _graphs


def replayed(graph: Hashable) -> None:
    """`graph` is replayed whole: one count, because every decode step passes here."""
    _replays[graph] += 1


def replayed_in_parts(graph: Hashable, ran: Work) -> None:
    """`graph` was replayed, in which Python itself launched and counted `ran`."""
    with _lock:
        _replayed.add(_graphs.get(graph, Work()) - ran)
