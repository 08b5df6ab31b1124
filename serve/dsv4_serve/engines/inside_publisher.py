"""The families that the index path of both engines exports: launches, rows, fallbacks and what scored last."""

from __future__ import annotations

from dsv4_serve.engines import inside_work
from dsv4_serve.engines.inside_families import Families

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
