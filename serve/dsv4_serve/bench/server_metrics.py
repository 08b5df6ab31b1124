"""The server's own counters around a run: prompt tokens, cached tokens by tier, and what its cache holds."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.bench.request import BenchError


@dataclass(frozen=True, slots=True)
class Counters:
    """`capacity_tokens`: tokens of context that fit on the device, None when the engine does not tell."""

    prompt_tokens: float
    cached_tokens: dict[str, float]
    capacity_tokens: float | None

    def since(self, before: Counters) -> Counters:
        cached = {tier: now - before.cached_tokens.get(tier, 0.0) for tier, now in self.cached_tokens.items()}
        return Counters(self.prompt_tokens - before.prompt_tokens, cached, self.capacity_tokens)

    def hit_rate(self, tier: str) -> float | None:
        """Of this run's prompt tokens; None for a tier that the server does not have."""
        if tier not in self.cached_tokens or not self.prompt_tokens:
            return None
        return self.cached_tokens[tier] / self.prompt_tokens


async def read_counters(url: str | None) -> Counters | None:
    """From /metrics at `url`; None without a `url` or where the server shows none there. BenchError without answer."""
    if url is None:
        return None
    try:
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(url)
    except httpx.HTTPError as error:
        raise BenchError(f"{url}: {type(error).__name__}: {error}") from error
    if answer.status_code != 200:
        return None
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    prompt = sum(s.value for s in samples if s.name == "dsv4_prompt_tokens_total")
    cached: dict[str, float] = {}
    capacity = None
    for sample in samples:
        if sample.name == "dsv4_cached_tokens_total":
            tier = sample.labels["tier"]
            cached[tier] = cached.get(tier, 0.0) + sample.value
        if (
            sample.name == "dsv4_kv_capacity_tokens"
            and sample.labels.items() >= {"region": "main", "tier": "gpu"}.items()
        ):
            capacity = (capacity or 0.0) + sample.value
    return Counters(prompt, cached, capacity)
