"""What the index path did in this process: launches and rows scored, those of replayed graphs included.

Python runs when a graph is captured and not when it is replayed, so each graph remembers what its capture launched, and
a replay adds that. What a replay runs in Python nevertheless (the eager parts of a breakable graph) has counted itself.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook

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
_graphs: dict[tuple[int, Any], Work] = {}
_replays: Counter[tuple[int, Any]] = Counter()
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


def _capturing(capture_one: Function) -> Function:
    """A backend's `capture_one(shape_key, forward_fn, ...)` calls `forward_fn` to warm up, and last to capture."""

    def capture(backend: Any, shape_key: Any, forward_fn: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
        last = Work()

        def watched() -> Any:
            nonlocal last
            before = in_python()
            output = forward_fn()
            last = in_python() - before
            return output

        result = capture_one(backend, shape_key, watched, *args, **kwargs)
        key = id(backend), shape_key
        with _lock:
            # What an earlier graph of this key launched stays counted.
            _replayed.add(_graphs.get(key, Work()).times(_replays.pop(key, 0)))
            _graphs[key] = last
        return result

    return capture


def _replaying(replay: Function) -> Function:
    """Of a graph that is replayed whole: one count, because every decode step passes here."""

    def counted(backend: Any, shape_key: Any, *args: Any, **kwargs: Any) -> Any:
        _replays[id(backend), shape_key] += 1
        return replay(backend, shape_key, *args, **kwargs)

    return counted


def _replaying_in_parts(replay: Function) -> Function:
    """Of a graph with eager parts between its captured ones."""

    def counted(backend: Any, shape_key: Any, *args: Any, **kwargs: Any) -> Any:
        graph = _graphs.get((id(backend), shape_key))
        if graph is None:
            return replay(backend, shape_key, *args, **kwargs)
        before = in_python()
        result = replay(backend, shape_key, *args, **kwargs)
        missed = graph - (in_python() - before)
        with _lock:
            _replayed.add(missed)
        return result

    return counted


BACKENDS = "sglang.srt.model_executor.runner_backend"
HOOKS: tuple[Hook, ...] = tuple(
    Hook(f"{BACKENDS}.{module}", f"{name}.{method}", wrap, "counts the launches of captured graphs")
    for module, name, replaying in (
        ("full_cuda_graph_backend", "FullCudaGraphBackend", _replaying),
        ("breakable_cuda_graph_backend", "BreakableCudaGraphBackend", _replaying_in_parts),
    )
    for method, wrap in (("capture_one", _capturing), ("replay", replaying))
)
