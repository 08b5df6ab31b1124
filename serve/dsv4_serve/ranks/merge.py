"""One figure of several ranks: the maximum where they do the same work (TP), the sum where they share it (DP)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from prometheus_client import Metric
from prometheus_client.samples import Sample

How = Literal["max", "sum"]

SAME_EVERYWHERE = frozenset({"dsv4_kv_bytes_per_token", "dsv4_index_format", "dsv4_indexer_path"})
"""What describes rather than counts: adding it up over ranks would mean nothing."""

Key = tuple[str, tuple[tuple[str, str], ...]]


def merge(ranks: Sequence[Iterable[Metric]], how: How) -> list[Metric]:
    """Families of all ranks as one, in the order in which they first appear; samples meet by name and labels.

    A rank that does not have a sample changes nothing: a missing figure is not a zero.
    """
    merged: dict[str, Metric] = {}
    values: dict[str, dict[Key, float]] = {}
    for families in ranks:
        for family in families:
            known = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            combine = _combine("max" if family.name in SAME_EVERYWHERE else how)
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                seen = values.setdefault(known.name, {})
                seen[key] = combine(seen[key], sample.value) if key in seen else sample.value
    for name, family in merged.items():
        family.samples = [Sample(*_named(key), value) for key, value in values.get(name, {}).items()]
    return list(merged.values())


def _combine(how: How) -> Callable[[float, float], float]:
    return max if how == "max" else lambda a, b: a + b


def _named(key: Key) -> tuple[str, dict[str, str]]:
    name, labels = key
    return name, dict(labels)
