"""/status.json: what the status page shows, from the same metrics that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.samples import Sample

from dsv4_serve.front import Front
from dsv4_serve.metrics.scrape import engine_families
from dsv4_serve.planner.expected import Expected

KV_FIELDS = {
    "dsv4_kv_capacity_tokens": "capacity_tokens",
    "dsv4_kv_capacity_bytes": "capacity_bytes",
    "dsv4_kv_used_tokens": "used_tokens",
    "dsv4_kv_evictable_tokens": "evictable_tokens",
}


class Samples:
    """Samples of the engine by name; whatever it does not export is None or empty, never zero."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for family in families:
            for sample in family.samples:
                self._by_name.setdefault(sample.name, []).append(sample)

    def all(self, name: str) -> list[Sample]:
        return self._by_name.get(name, [])

    def total(self, name: str) -> float | None:
        samples = self.all(name)
        return sum(sample.value for sample in samples) if samples else None

    def by(self, name: str, *labels: str) -> dict[str, float]:
        """Sums by the values of `labels`, joined by a space."""
        sums: dict[str, float] = {}
        for sample in self.all(name):
            key = " ".join(sample.labels[label] for label in labels)
            sums[key] = sums.get(key, 0.0) + sample.value
        return sums

    def histogram(self, name: str) -> dict[str, Any] | None:
        """{"buckets": [[upper bound, cumulative count], ...], "sum", "count"}; the last bound is null."""
        if not self.all(f"{name}_count"):
            return None
        bounds = [
            [None if sample.labels["le"] == "+Inf" else float(sample.labels["le"]), sample.value]
            for sample in self.all(f"{name}_bucket")
        ]
        return {"buckets": bounds, "sum": self.total(f"{name}_sum"), "count": self.total(f"{name}_count")}


async def status(front: Front) -> dict[str, Any]:
    samples = Samples(await engine_families(front))
    profile = front.settings.profile
    return {
        "model": profile.model.name,
        "trained": profile.trained,
        "profile": profile.name,
        "engine": front.adapter.name,
        "indexer_dtype": profile.indexer.dtype,
        "kv_layout": profile.kv_layout,
        "context_length": profile.model.context_length,
        "ready": front.lifecycle.ready,
        "reason": front.lifecycle.reason or None,
        "uptime_seconds": round(front.lifecycle.uptime, 1),
        **front.lifecycle.describe(),
        "warnings": list(front.warnings),
        "kv": _kv(samples, front.metrics.expected),
        "prompt_tokens": samples.total("dsv4_prompt_tokens_total"),
        "cached_tokens": samples.by("dsv4_cached_tokens_total", "tier"),
        "generated_tokens": samples.total("dsv4_generated_tokens_total"),
        "running_requests": samples.total("dsv4_running_requests"),
        "queued_requests": samples.total("dsv4_queued_requests"),
        "time_to_first_token": samples.histogram("dsv4_time_to_first_token_seconds"),
        "inter_token_latency": samples.histogram("dsv4_inter_token_latency_seconds"),
        "indexer_launches": samples.by("dsv4_indexer_launches_total", "backend", "phase"),
        "indexer_fallbacks": samples.by("dsv4_indexer_fallbacks_total", "reason"),
    }


def _kv(samples: Samples, expected: Sequence[Expected]) -> list[dict[str, Any]]:
    """One row a region and tier, in the engine's order, with what the planner expected of it."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for name, field in KV_FIELDS.items():
        for sample in samples.all(name):
            key = (sample.labels["region"], sample.labels["tier"])
            rows.setdefault(key, {"region": key[0], "tier": key[1]})[field] = sample.value
    per_token = samples.by("dsv4_kv_bytes_per_token", "region")
    for row in rows.values():
        if row["region"] in per_token:
            row["bytes_per_token"] = per_token[row["region"]]
    for each in expected:
        if (main := rows.get(("main", each.tier))) is not None:
            main["expected_tokens"] = each.tokens
        for region, size in each.regions.items():
            if (row_of_region := rows.get((region, each.tier))) is not None:
                row_of_region["expected_bytes"] = size
    return list(rows.values())
