"""What the plugins export from inside the engines, without the ranks of the processes that exported it.

Tensor ranks of a replica do the same work on the same keys, so the largest tells; stages and replicas have pools and
launches of their own and add up. What describes rather than counts is the largest of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import Metric

from dsv4_serve.engines.inside_families import COMPILES, RANKS
from dsv4_serve.engines.metric_rules import Families, Key

ADDED_UP = (
    "dsv4_kv_capacity_tokens",
    "dsv4_kv_capacity_bytes",
    "dsv4_indexer_launches_total",
    "dsv4_indexer_fallbacks_total",
    "dsv4_indexer_rows_total",
    "dsv4_indexer_seconds_total",
    "dsv4_indexer_timed_launches_total",
    "dsv4_indexer_workspace_bytes",
    "dsv4_indexer_recall",
    "dsv4_indexer_recall_requests_total",
    "dsv4_indexer_recall_buffer_bytes",
    "dsv4_nonfinite_logits_total",
)
DESCRIBING = ("dsv4_kv_bytes_per_token", "dsv4_index_format", "dsv4_indexer_path")
AFTER_READY = "dsv4_compile_events_after_ready_total"
PROVIDED = (*ADDED_UP, *DESCRIBING, AFTER_READY)
"""Families of metrics/names.py that come from inside the engine."""


def values(sources: Families, compiled_before: float | None) -> dict[str, dict[Key, float]]:
    """{family: {key: value}} of an exposition, labels without ranks.

    `compiled_before`: kernels compiled when the engine became ready; None before it is, and then nothing is said about
    those after.
    """
    found: dict[str, dict[Key, float]] = {}
    for name in (*ADDED_UP, *DESCRIBING):
        family = sources.get(name.removesuffix("_total"))
        combined = _combined(family, add=name in ADDED_UP) if family is not None else {}
        if combined:
            found[name] = combined
    compiles = compile_events(sources)
    if compiles is not None and compiled_before is not None:
        found[AFTER_READY] = {("", ()): max(0.0, compiles - compiled_before)}
    return found


def compile_events(sources: Families) -> float | None:
    """Kernels compiled in the engine since its start, None where the plugin exports nothing."""
    family = sources.get(COMPILES.removesuffix("_total"))
    return None if family is None else sum(_combined(family, add=True).values())


def _combined(family: Metric, *, add: bool) -> dict[Key, float]:
    by_replica: dict[tuple[Key, tuple[str, str]], float] = {}
    for key, (replica, stage, _), value in _samples(family):
        place = key, (replica, stage)
        by_replica[place] = max(value, by_replica.get(place, value))
    found: dict[Key, float] = defaultdict(float)
    for (key, _), value in by_replica.items():
        found[key] = found[key] + value if add else max(value, found[key])
    return dict(found)


def _samples(family: Metric) -> Iterator[tuple[Key, tuple[str, str, str], float]]:
    for sample in family.samples:
        # The engine's own families have no replica; client libraries add when a counter was made.
        if RANKS[0] not in sample.labels or sample.name.endswith("_created"):
            continue
        labels = {name: value for name, value in sample.labels.items() if name not in RANKS}
        suffix = sample.name.removeprefix(family.name).removeprefix("_total")
        replica, stage, tensor = (sample.labels[name] for name in RANKS)
        yield (suffix, tuple(sorted(labels.items()))), (replica, stage, tensor), sample.value
