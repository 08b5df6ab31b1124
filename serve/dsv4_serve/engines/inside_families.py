"""The families that a process inside an engine exports: a scheduler of SGLang in its multiprocess directory, a worker
of vLLM in a registry of its own.

Every process labels its samples with its ranks; `engines/inside_metrics.py` adds them up. Names, labels and help are
those of metrics/names.py, but for what only the launcher can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

RANKS = ("replica", "pp_rank", "tp_rank")
COMPILES = "dsv4_compile_events_total"
"""All compilations; the launcher knows how many were before it called itself ready."""
RECALL_BUCKETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 1.0)


class Families:
    """Prometheus families made on first use, so that what nobody measures is absent."""

    def __init__(self, ranks: Mapping[str, str], registry: Any = None) -> None:
        self._ranks = {name: ranks[name] for name in RANKS}
        self._registry = {} if registry is None else {"registry": registry}
        self._made: dict[str, Any] = {}
        self._totals: dict[tuple[str, tuple[str, ...]], float] = {}

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._child(name, labels).set(value)

    def counter(self, name: str, total: float, **labels: str) -> None:
        """Bring a counter to `total`, which must not fall."""
        key = name, tuple(labels.values())
        grown = total - self._totals.get(key, 0.0)
        if grown < 0:
            raise ValueError(f"{name}{labels}: a total of {total} after one of {self._totals[key]}")
        self._child(name, labels).inc(grown)
        self._totals[key] = total

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        self._child(name, labels).observe(value)

    def _child(self, name: str, labels: Mapping[str, str]) -> Any:
        if name not in self._made:
            self._made[name] = self._make(name, tuple(labels))
        return self._made[name].labels(**labels, **self._ranks)

    def _make(self, name: str, labels: tuple[str, ...]) -> Any:
        # Imported late: it picks its storage when the engine has named the multiprocess directory.
        from prometheus_client import Counter, Gauge, Histogram

        from dsv4_serve.metrics.names import BY_NAME

        entry = BY_NAME.get(name)
        text = "kernels compiled since start" if entry is None else entry.help
        names = (*labels, *RANKS)
        if entry is None or entry.type == "counter":
            return Counter(name, text, names, **self._registry)
        if entry.type == "histogram":
            return Histogram(name, text, names, buckets=RECALL_BUCKETS, **self._registry)
        make: Callable[..., Any] = Gauge
        return make(name, text, names, multiprocess_mode="mostrecent", **self._registry)
