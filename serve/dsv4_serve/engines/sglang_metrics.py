"""SGLang's metrics, and our plugin's inside it, as families of metrics/names.py. What neither exports is absent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dsv4_serve.engines import sglang_inside
from dsv4_serve.engines.sglang_inside import Key
from dsv4_serve.metrics.names import BY_NAME

MAIN = {"region": "main", "tier": "gpu"}
WINDOW = {"region": "window", "tier": "gpu"}
HOST = {"region": "main", "tier": "host"}


@dataclass(frozen=True, slots=True)
class Rule:
    """`source` samples with all of `where` become `target` samples with `labels`; rules of one target add up."""

    source: str
    target: str
    labels: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)


RULES: tuple[Rule, ...] = (
    Rule("sglang:max_total_num_tokens", "dsv4_kv_capacity_tokens", MAIN),
    Rule("sglang:max_total_num_tokens_swa", "dsv4_kv_capacity_tokens", WINDOW),
    Rule("sglang:hicache_host_total_tokens", "dsv4_kv_capacity_tokens", HOST),
    # Slots of running requests and of the radix cache: both are in the pool.
    Rule("sglang:kv_used_tokens", "dsv4_kv_used_tokens", MAIN),
    Rule("sglang:kv_evictable_tokens", "dsv4_kv_used_tokens", MAIN),
    Rule("sglang:swa_used_tokens", "dsv4_kv_used_tokens", WINDOW),
    Rule("sglang:swa_evictable_tokens", "dsv4_kv_used_tokens", WINDOW),
    Rule("sglang:hicache_host_used_tokens", "dsv4_kv_used_tokens", HOST),
    Rule("sglang:kv_evictable_tokens", "dsv4_kv_evictable_tokens", MAIN),
    Rule("sglang:prompt_tokens_total", "dsv4_prompt_tokens_total"),
    Rule("sglang:cached_tokens_total", "dsv4_cached_tokens_total", {"tier": "gpu"}, {"cache_source": "device"}),
    Rule("sglang:cached_tokens_total", "dsv4_cached_tokens_total", {"tier": "host"}, {"cache_source": "host"}),
    Rule("sglang:cached_tokens_total", "dsv4_cached_tokens_total", {"tier": "disk"}, {"cache_source": "storage"}),
    Rule("sglang:generation_tokens_total", "dsv4_generated_tokens_total"),
    Rule("sglang:num_running_reqs", "dsv4_running_requests"),
    Rule("sglang:num_queue_reqs", "dsv4_queued_requests"),
    Rule("sglang:num_retracted_requests_total", "dsv4_retracted_requests_total"),
    Rule("sglang:time_to_first_token_seconds", "dsv4_time_to_first_token_seconds"),
    Rule("sglang:inter_token_latency_seconds", "dsv4_inter_token_latency_seconds"),
)

REPLICA = "dp_rank"
"""Ranks of one replica hold the same pool, so the fullest tells; replicas add up."""


def translate(text: str, compiled_before: float | None = None) -> list[Metric]:
    """The families that `RULES` make of SGLang's exposition, and those of `sglang_inside.values`."""
    sources = {family.name: family for family in text_string_to_metric_families(text)}
    totals: dict[str, dict[Key, float]] = defaultdict(lambda: defaultdict(float))
    for rule in RULES:
        # The text format's parser drops the _total of a counter's family name.
        family = sources.get(rule.source.removesuffix("_total")) or sources.get(rule.source)
        for key, value in _values(rule, family.samples if family else ()):
            totals[rule.target][key] += value
    for name, values in sglang_inside.values(text, compiled_before).items():
        totals[name].update(values)
    return [sglang_inside.family_of(name, totals[name]) for name in totals]


def _values(rule: Rule, samples: Iterable[Sample]) -> Iterator[tuple[Key, float]]:
    """One value per suffix and bucket: gauges by the fullest rank of a replica, then everything summed."""
    gauge = BY_NAME[rule.target].type == "gauge"
    per_replica: dict[tuple[Key, str], float] = {}
    for sample in samples:
        # Gauges have a total with an empty priority beside one sample per priority.
        if sample.name.endswith("_created") or (gauge and sample.labels.get("priority")):
            continue
        if any(sample.labels.get(name) != value for name, value in rule.where.items()):
            continue
        suffix = sample.name.removeprefix(rule.source.removesuffix("_total")).removeprefix("_total")
        labels = dict(rule.labels) | ({"le": sample.labels["le"]} if "le" in sample.labels else {})
        at = ((suffix, tuple(sorted(labels.items()))), sample.labels.get(REPLICA, ""))
        before = per_replica.get(at)
        if before is None:
            per_replica[at] = sample.value
        else:
            per_replica[at] = max(before, sample.value) if gauge else before + sample.value
    for (key, _), value in per_replica.items():
        yield key, value
