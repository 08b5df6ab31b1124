"""SGLang's metrics, and our plugin's inside it, as families of metrics/names.py. What neither exports is absent."""

from __future__ import annotations

from prometheus_client import Metric

from dsv4_serve.engines import inside_metrics
from dsv4_serve.engines.metric_rules import Rule, family_of, parse, totals

MAIN = {"region": "main", "tier": "gpu"}
WINDOW = {"region": "window", "tier": "gpu"}
HOST = {"region": "main", "tier": "host"}


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


def translate(text: str, compiled_before: float | None = None) -> list[Metric]:
    """The families that `RULES` make of SGLang's exposition, and those of `inside_metrics.values`."""
    sources = parse(text)
    found = totals(sources, RULES, REPLICA)
    for name, values in inside_metrics.values(sources, compiled_before).items():
        found[name].update(values)
    return [family_of(name, found[name]) for name in found]
