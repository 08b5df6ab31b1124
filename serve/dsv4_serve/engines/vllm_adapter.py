"""The adapter of vLLM 0.33.0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Metric

from dsv4_serve.engines import vllm_command, vllm_metrics
from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.client import EngineClient, EngineUnreachableError
from dsv4_serve.engines.first_generation import generate_once
from dsv4_serve.flags import Value
from dsv4_serve.profiles.schema import Profile

REPORTED = ("block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks", "kv_cache_size_tokens")
"""Of vLLM's cache configuration, which is all that it tells without its development routes."""


class VllmAdapter:
    """vLLM as it is published, on gfx950 with AITER beneath."""

    name = "vllm"
    liveness = "/health"
    accepts: Mapping[str, frozenset[Value]] = {
        "DSV4_KV_LAYOUT": frozenset({"v4", "v41"}),
        "DSV4_SPECULATIVE": frozenset({"off", "eagle", "dspark"}),
        "DSV4_BACKEND": frozenset({"auto", "aiter", "gfx950", "portable"}),
        "DSV4_ROWGROUP": frozenset({False}),
        "DSV4_PAGE8": frozenset({False}),
        "DSV4_SHADOW_RECALL": frozenset({False}),
        "DSV4_INVARIANT_ROWS": frozenset({16}),
        "DSV4_HICACHE": frozenset({False}),
    }

    def __init__(self, run: EngineRun) -> None:
        self.run = run

    def command(self, profile: Profile) -> list[str]:
        return vllm_command.command(profile, self.run)

    def environment(self, profile: Profile) -> dict[str, str]:
        return vllm_command.environment(profile)

    async def ready(self, client: EngineClient) -> bool:
        models = (await client.get_json("/v1/models")).get("data") or []
        if not models:
            raise EngineUnreachableError("/v1/models: no model is served")
        await generate_once(client, models[0]["id"])
        return True

    async def effective(self, client: EngineClient) -> dict[str, Any]:
        """Served names, context length, version, and what the metrics tell of the cache."""
        models = (await client.get_json("/v1/models")).get("data") or []
        caches = vllm_metrics.cache_config(await client.get_text("/metrics"))
        first = next(iter(caches.values()), {})
        return {
            "version": (await client.get_json("/version")).get("version"),
            "served_model_name": models[0]["id"] if models else None,
            "max_model_len": models[0].get("max_model_len") if models else None,
            "engines": len(caches),
        } | {name: first.get(name) for name in REPORTED}

    def differences(self, profile: Profile, effective: dict[str, Any]) -> list[str]:
        return [
            f"{name}: asked was {wanted}, in effect is {effective.get(name, 'not reported')}"
            for name, wanted in _asked(profile).items()
            if effective.get(name) != wanted
        ]

    def translate(self, text: str) -> Iterable[Metric]:
        return vllm_metrics.translate(text)

    async def running(self, client: EngineClient) -> int:
        text = await client.get_text("/metrics")
        wanted = {"dsv4_running_requests", "dsv4_queued_requests"}
        families = [family for family in vllm_metrics.translate(text) if family.name in wanted]
        return int(sum(sample.value for family in families for sample in family.samples))


def _asked(profile: Profile) -> dict[str, Any]:
    """What vLLM must report, by its names; its labels are text."""
    return {
        "served_model_name": profile.model.name,
        "max_model_len": profile.model.context_length,
        "engines": profile.dp,
        "block_size": str(vllm_command.BLOCK_SIZES[profile.kv_layout]),
        "enable_prefix_caching": str(profile.engine.prefix_caching),
    }
