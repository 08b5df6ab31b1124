"""The families that the index path of both engines exports: launches, rows, fallbacks and what scored last."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from dsv4_serve.engines import inside_work
from dsv4_serve.engines.inside_families import Families

SECONDS = 1.0
SCORING = frozenset({"paged_logits", "rowgroup_logits"})


class IndexPublisher:
    """Brings the families of one process up to date; one thread at a time."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._scored = inside_work.Work()
        self._path: dict[str, tuple[str, str]] = {}

    def publish(self) -> None:
        from dsv4_kernels import counters

        done = inside_work.total()
        for (op, phase, backend), launches in done.launches.items():
            self._families.counter("dsv4_indexer_launches_total", launches, op=op, phase=phase, backend=backend)
        for (op, phase, scope), rows in done.rows.items():
            self._families.counter("dsv4_indexer_rows_total", rows, op=op, phase=phase, scope=scope)
        for (op, reason), count in counters.snapshot().fallbacks.items():
            self._families.counter("dsv4_indexer_fallbacks_total", count, op=op, reason=reason)
        self._paths(done)

    def _paths(self, done: inside_work.Work) -> None:
        """What scored keys last in each phase is 1, what did before is 0."""
        grown = (done - self._scored).launches
        self._scored = done
        for (op, phase, backend), launches in grown.items():
            if op not in SCORING or launches <= 0:
                continue
            before = self._path.get(phase)
            if before not in (None, (op, backend)):
                self._families.gauge("dsv4_indexer_path", 0, phase=phase, op=before[0], backend=before[1])
            self._path[phase] = op, backend
            self._families.gauge("dsv4_indexer_path", 1, phase=phase, op=op, backend=backend)


def format_labels(described: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """The labels of dsv4_index_format, one set for each format of what `dsv4_kernels.fingerprint` describes."""
    found = {(str(d["layout"]), str(d["format"]), str(d["convention"]["name"])) for d in described}
    return [{"layout": layout, "format": kind, "convention": rule} for layout, kind, rule in sorted(found)]


def publish_every_second(publish: Callable[[], None], log: logging.Logger) -> None:
    """Once now, whose errors are the caller's, then in a thread that ends with the process."""
    publish()
    threading.Thread(target=_run, args=(publish, log), name="dsv4-metrics", daemon=True).start()


def _run(publish: Callable[[], None], log: logging.Logger) -> None:
    told: set[str] = set()
    while True:
        time.sleep(SECONDS)
        try:
            publish()
        except Exception as error:  # the engine must not die of its metrics; each reason is told once
            if repr(error) not in told:
                told.add(repr(error))
                log.exception("metrics of the index path are not up to date")
