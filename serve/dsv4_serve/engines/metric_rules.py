"""An engine's own metrics as families of metrics/names.py: a table of rules, one mechanism."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dsv4_serve.metrics.names import BY_NAME

Key = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's suffix (`_bucket`, `_sum`, ...) and its labels in our names."""
Totals = dict[str, dict[Key, float]]
Families = Mapping[str, Metric]
"""An exposition by family; the text format's parser drops the _total of a counter's name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`source` samples with all of `where` become `target` samples with `labels`; rules of one target add up."""

    source: str
    target: str
    labels: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)


def parse(text: str) -> Families:
    """Read once, whatever is asked of it afterwards."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def totals(sources: Families, rules: Sequence[Rule], replica: str) -> Totals:
    """What `rules` make of an exposition. `replica` is the label that tells an engine's replicas apart: ranks of one
    replica hold the same pool, so the fullest tells, and replicas add up.
    """
    found: Totals = defaultdict(lambda: defaultdict(float))
    for rule in rules:
        family = sources.get(rule.source.removesuffix("_total")) or sources.get(rule.source)
        for key, value in _values(rule, family.samples if family else (), replica):
            found[rule.target][key] += value
    return found


def family_of(target: str, samples: Mapping[Key, float]) -> Metric:
    """One family of metrics/names.py from values by suffix and labels."""
    entry = BY_NAME[target]
    family = Metric(target.removesuffix("_total"), entry.help, entry.type)
    family.samples = [Sample(target + suffix, dict(labels), value) for (suffix, labels), value in samples.items()]
    return family


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
