"""An engine's own metrics as families of metrics/names.py: a table of rules, one mechanism."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dsv4_serve.metrics.names import BY_NAME

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's suffix (`_bucket`, `_sum`, ...) and its labels in our names."""
Totals = dict[str, dict[Key, float]]


@dataclass(frozen=True, slots=True)
class Rule:
    """`source` samples with all of `where` become `target` samples with `labels`; rules of one target add up."""

    source: str
    target: str
    labels: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)


def totals(text: str, rules: Sequence[Rule], replica: str) -> Totals:
    """What `rules` make of an exposition. `replica` is the label that tells an engine's replicas apart: ranks of one
    replica hold the same pool, so the fullest tells, and replicas add up.
    """
    sources = {family.name: family for family in text_string_to_metric_families(text)}
    found: Totals = defaultdict(lambda: defaultdict(float))
    for rule in rules:
        # The text format's parser drops the _total of a counter's family name.
        family = sources.get(rule.source.removesuffix("_total")) or sources.get(rule.source)
        for key, value in _values(rule, family.samples if family else (), replica):
            found[rule.target][key] += value
    return found


def _values(rule: Rule, samples: Iterable[Sample], replica: str) -> Iterator[tuple[Key, float]]:
    """One value per suffix and bucket: gauges by the fullest rank of a replica, then everything summed."""
    gauge = BY_NAME[rule.target].type == "gauge"
    per_replica: dict[tuple[Key, str], float] = {}
    for sample in samples:
        # SGLang's gauges have a total with an empty priority beside one sample per priority.
        if sample.name.endswith("_created") or (gauge and sample.labels.get("priority")):
            continue
        if any(sample.labels.get(name) != value for name, value in rule.where.items()):
            continue
        suffix = sample.name.removeprefix(rule.source.removesuffix("_total")).removeprefix("_total")
        labels = dict(rule.labels) | ({"le": sample.labels["le"]} if "le" in sample.labels else {})
        at = ((suffix, tuple(sorted(labels.items()))), sample.labels.get(replica, ""))
        before = per_replica.get(at)
        if before is None:
            per_replica[at] = sample.value
        else:
            per_replica[at] = max(before, sample.value) if gauge else before + sample.value
    for (key, _), value in per_replica.items():
        yield key, value
