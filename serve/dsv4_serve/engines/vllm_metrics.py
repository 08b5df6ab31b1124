"""vLLM's metrics, and our plugin's inside it, as families of metrics/names.py. What neither exports is absent."""

from __future__ import annotations

from prometheus_client import Metric

from dsv4_serve.engines import inside_metrics
from dsv4_serve.engines.metric_rules import Families, Rule, family_of, parse, totals

MAIN = {"region": "main", "tier": "gpu"}
HOST = {"region": "main", "tier": "host"}
CACHED = "vllm:prompt_tokens_cached_by_source_total"
# It adds up to vllm:prefix_cache_hits and vllm:external_prefix_cache_hits, which name no tier: these are left out.
# `disk` is also what comes from beyond this machine, as with SGLang's storage.
TIERS = {"device": "gpu", "host": "host", "disk": "disk", "p2p": "disk", "external_unspecified": "disk"}

RULES: tuple[Rule, ...] = (
    Rule("vllm:prompt_tokens_total", "dsv4_prompt_tokens_total"),
    *(Rule(CACHED, "dsv4_cached_tokens_total", {"tier": tier}, {"source": source}) for source, tier in TIERS.items()),
    Rule("vllm:generation_tokens_total", "dsv4_generated_tokens_total"),
    Rule("vllm:num_requests_running", "dsv4_running_requests"),
    Rule("vllm:num_requests_waiting", "dsv4_queued_requests"),
    Rule("vllm:num_preemptions_total", "dsv4_retracted_requests_total"),
    Rule("vllm:time_to_first_token_seconds", "dsv4_time_to_first_token_seconds"),
    Rule("vllm:inter_token_latency_seconds", "dsv4_inter_token_latency_seconds"),
)
REPLICA = "engine"
CACHE_CONFIG = "vllm:cache_config_info"
CAPACITY = "kv_cache_size_tokens"
USAGE = "vllm:kv_cache_usage_perc"

CAPACITY_TOKENS, USED_TOKENS, EVICTABLE_TOKENS = (
    "dsv4_kv_capacity_tokens",
    "dsv4_kv_used_tokens",
    "dsv4_kv_evictable_tokens",
)
AT_MAIN = ("", tuple(sorted(MAIN.items())))


def translate(text: str) -> list[Metric]:
    """The families that `RULES` make of vLLM's exposition, with capacity and use by its cache configuration, and those
    that our plugin exports from its workers.
    """
    sources = parse(text)
    found = totals(sources, RULES, REPLICA)
    capacities = _capacities(sources)
    if capacities:
        found[CAPACITY_TOKENS][AT_MAIN] = float(sum(capacities.values()))
        shares = _by_engine(sources, USAGE)
        if shares.keys() >= capacities.keys():
            used = sum(capacity * shares[engine] for engine, capacity in capacities.items())
            found[USED_TOKENS][AT_MAIN] = float(round(used))
            # vLLM's share leaves cached pages out: it does not say how many there are, so none are counted as used.
            found[EVICTABLE_TOKENS][AT_MAIN] = 0.0
    for name, values in inside_metrics.values(sources, None).items():
        found[name].update(values)
    return [family_of(name, values) for name, values in found.items()]


def cache_config(text: str) -> dict[str, dict[str, str]]:
    """vLLM's cache configuration by engine, every value as text."""
    return _configs(parse(text))


def _configs(sources: Families) -> dict[str, dict[str, str]]:
    family = sources.get(CACHE_CONFIG)
    return {sample.labels.get(REPLICA, ""): dict(sample.labels) for sample in family.samples} if family else {}


def _capacities(sources: Families) -> dict[str, int]:
    """Tokens of context that each data-parallel engine's cache holds. vLLM tells them as a label, not as a value."""
    return {
        engine: int(float(labels[CAPACITY]))
        for engine, labels in _configs(sources).items()
        if labels.get(CAPACITY) not in (None, "None")
    }


def _by_engine(sources: Families, name: str) -> dict[str, float]:
    """A gauge by engine; of USAGE: the share that running requests hold, for vLLM counts cached pages as free."""
    family = sources.get(name)
    return {sample.labels.get(REPLICA, ""): sample.value for sample in family.samples} if family else {}
