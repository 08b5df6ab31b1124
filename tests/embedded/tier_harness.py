"""What tests of the cache tiers read off an engine, and prompts that share beginnings."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.engines.embedded.engine import AsyncEngine
from dsv4_serve.engines.embedded.request import SamplingParams, TokenOutput
from embedded.harness import prompt

GROUP = 430_000
"""What sizing allows for one page group of the tiny model, its file's header included, rounded up."""
EXACT = SamplingParams(max_tokens=3, temperature=0.0, logprobs=5)
"""Greedy, with enough of the logits to see any difference."""


def sample(engine: AsyncEngine, name: str, **labels: str) -> float:
    """The sum of a family's samples with these labels."""
    families = text_string_to_metric_families(engine.metrics_text())
    samples = [s for family in families for s in family.samples if s.name == name]
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


def cached_by_tier(engine: AsyncEngine) -> dict[str, float]:
    """Prompt tokens that came from each tier so far."""
    return {tier: sample(engine, "dsv4_cached_tokens_total", tier=tier) for tier in ("gpu", "host", "disk")}


def exactly(outputs: list[TokenOutput]) -> list[tuple[int, float | None, tuple[tuple[int, float], ...]]]:
    """All of an answer that depends on the model: equal only if the logits are, bit for bit."""
    return [(o.token_id, o.logprob, o.top_logprobs) for o in outputs]


def flood(number: int, tokens: int) -> list[int]:
    """A prompt that shares nothing with others."""
    return prompt(tokens, seed=10_000 + number)
