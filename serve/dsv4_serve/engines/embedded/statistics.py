"""What the engine counts while it runs, as Prometheus families (names: `dsv4_serve.metrics.names`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from dsv4_serve.metrics.names import BEYOND, PROMPT_LENGTHS, length_label

from .geometry import MAX_DRAFT_TOKENS
from .running import Request
from .tiers.tier_counters import TierCounters

_TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class EngineStatistics:
    """Counters and histograms of one engine with these tiers, in a registry of their own.

    `drafts` names where drafts come from; without it nothing is counted of them.
    """

    def __init__(self, tiers: Sequence[str] = ("gpu",), drafts: str | None = None) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.tiers = TierCounters(self.registry, [tier for tier in tiers if tier != "gpu"])

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        self._prompt = counter("dsv4_prompt_tokens", "prompt tokens of admitted requests")
        self._cached = counter("dsv4_cached_tokens", "prompt tokens that came from a prefix cache", ("tier",))
        self._prompt_by_length = counter("dsv4_prompt_tokens_by_length", "the same by prompt length", ("length",))
        self._cached_by_length = counter(
            "dsv4_cached_tokens_by_length", "the same by prompt length", ("length", "tier")
        )
        # A series that begins with its first increment hides it from every rate.
        for tier in tiers:
            self._cached.labels(tier)
        for length in (*map(str, PROMPT_LENGTHS), BEYOND):
            self._prompt_by_length.labels(length)
            for tier in tiers:
                self._cached_by_length.labels(length, tier)
        self._nonfinite = counter("dsv4_nonfinite_logits", "requests ended because of a NaN or an infinity")
        self._generated = counter("dsv4_generated_tokens", "generated tokens")
        self._retracted = counter("dsv4_retracted_requests", "running requests that gave their pages back and waited")
        self._acceptance: Histogram | None = None
        if drafts is not None:
            source = ("source",)
            self._drafted = counter("dsv4_drafted_tokens", "tokens that were drafted and verified", source).labels(
                drafts
            )
            self._accepted = counter("dsv4_accepted_tokens", "drafted tokens that were right", source).labels(drafts)
            self._acceptance = Histogram(
                "dsv4_acceptance_length",
                "tokens of a step that verified a draft",
                source,
                buckets=range(1, MAX_DRAFT_TOKENS + 2),
                registry=self.registry,
            ).labels(drafts)
        self._first = Histogram(
            "dsv4_time_to_first_token_seconds",
            "from arrival in the engine to first token",
            buckets=_TTFT_BUCKETS,
            registry=self.registry,
        )
        self._next = Histogram(
            "dsv4_inter_token_latency_seconds",
            "between two tokens of one request",
            buckets=_TOKEN_BUCKETS,
            registry=self.registry,
        )

    def admitted(self, prompt_tokens: int, cached_tokens: Mapping[str, int]) -> None:
        """A request started for the first time; `cached_tokens` of its prompt by the tier that they came from."""
        length = length_label(prompt_tokens)
        self._prompt.inc(prompt_tokens)
        self._prompt_by_length.labels(length).inc(prompt_tokens)
        for tier, tokens in cached_tokens.items():
            if tokens:
                self._cached.labels(tier).inc(tokens)
                self._cached_by_length.labels(length, tier).inc(tokens)

    def nonfinite(self) -> None:
        """A request ended because its logits were not all finite."""
        self._nonfinite.inc()

    def generated(self, request: Request) -> None:
        """A request got a token."""
        now = time.monotonic()
        self._generated.inc()
        if request.last_token_at is None:
            self._first.observe(now - request.submitted_at)
        else:
            self._next.observe(now - request.last_token_at)
        request.last_token_at = now

    def verified(self, drafted: int, emitted: int) -> None:
        """A draft was verified: the step gave `emitted` tokens, the last of which the model added itself."""
        if self._acceptance is not None:
            self._drafted.inc(drafted)
            self._accepted.inc(emitted - 1)
            self._acceptance.observe(emitted)

    def retracted(self) -> None:
        """A running request was sent back to the queue."""
        self._retracted.inc()
