"""The adapter of the embedded engine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Metric

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.client import EngineClient, EngineUnreachableError
from dsv4_serve.engines.first_generation import generate_once
from dsv4_serve.flags import Value
from dsv4_serve.metrics.exposition import parse_engine_metrics
from dsv4_serve.profiles.schema import Profile

FIRST_GENERATION_SECONDS = 120.0
TIERS = ("host", "disk")
SWITCHES = {"DSV4_ROWGROUP": "--rowgroup", "DSV4_PAGE8": "--page8"}


class EmbeddedAdapter:
    """One process, one thread of torch on a CPU; no parallelism."""

    name = "embedded"
    liveness = "/health"
    accepts: Mapping[str, frozenset[Value]] = {
        "DSV4_INDEX_HADAMARD": frozenset({False}),
        "DSV4_TP": frozenset({1}),
        "DSV4_EP": frozenset({1}),
        "DSV4_DP": frozenset({1}),
        "DSV4_NODES": frozenset({1}),
        "DSV4_KV_LAYOUT": frozenset({"v4", "v41", "bf16"}),
        "DSV4_SPECULATIVE": frozenset({"off", "ngram", "dspark"}),
        "DSV4_BACKEND": frozenset({"auto", "reference"}),
        "DSV4_SHADOW_RECALL": frozenset({False}),
        "DSV4_INVARIANT_ROWS": frozenset({16}),
        "DSV4_INDEXER_TIMING": frozenset({0}),
    }

    def __init__(self, run: EngineRun) -> None:
        self.run = run

    def command(self, profile: Profile) -> list[str]:
        options: dict[str, object] = {
            "--model-path": self.run.model_dir,
            "--host": "127.0.0.1",
            "--port": self.run.port,
            "--served-model-name": profile.model.name,
            "--indexer-dtype": profile.indexer.dtype,
            "--kv-dtype": profile.kv_layout,
            "--max-total-tokens": profile.engine.max_total_tokens,
            "--max-running-requests": profile.engine.max_running_requests,
            "--max-queued-requests": profile.engine.max_queued_requests,
            "--context-length": profile.model.context_length,
            "--speculative": profile.speculative,
        }
        kernels = profile.toggles().get("DSV4_KERNELS_DIR")
        if kernels is not None:
            options["--kernels-dir"] = kernels
        if profile.hicache:
            options |= _tiers(profile)
        words = [str(word) for option in options.items() for word in option]
        switches = [word for toggle, word in SWITCHES.items() if profile.flags.get(toggle)]
        json_logs = ["--json-logs"] if self.run.json_logs else []
        hicache = ["--hicache"] if profile.hicache else []
        engine = [sys.executable, "-m", "dsv4_serve.engines.embedded"]
        return [*engine, *words, *switches, *hicache, *json_logs, *profile.engine.extra_args]

    def environment(self, profile: Profile) -> dict[str, str]:
        return dict(profile.env)

    async def ready(self, client: EngineClient) -> bool:
        await generate_once(client, (await self.effective(client))["model"], FIRST_GENERATION_SECONDS)
        return True

    async def effective(self, client: EngineClient) -> dict[str, Any]:
        info = await client.get_json("/server_info")
        if not isinstance(info, dict):
            raise EngineUnreachableError(f"/server_info: expected an object, found {type(info).__name__}")
        return info

    def differences(self, profile: Profile, effective: dict[str, Any]) -> list[str]:
        asked = {
            "model": profile.model.name,
            "indexer_dtype": profile.indexer.dtype,
            "kv_dtype": profile.kv_layout,
            "context_length": profile.model.context_length,
            "hicache": profile.hicache,
            "speculative": profile.speculative,
        }
        asked |= {word.removeprefix("--"): True for toggle, word in SWITCHES.items() if profile.flags.get(toggle)}
        if profile.hicache:
            asked |= {"write_policy": profile.hicache_write_policy, "disk_dir": profile.hicache_disk_dir}
            asked |= {f"tiers.{name}": wanted for name, wanted in _tier_bytes(profile).items()}
            tiers = effective.get("tiers", {})
            effective = effective | {f"tiers.{name}": tiers.get(name, {}).get("limit_bytes") for name in TIERS}
        found = [
            f"{name}: asked was {wanted}, in effect is {effective.get(name, 'not reported')}"
            for name, wanted in asked.items()
            if effective.get(name) != wanted
        ]
        return found + _backend_differences(profile, effective)

    def translate(self, text: str) -> Iterable[Metric]:
        return parse_engine_metrics(text, self.name)

    async def running(self, client: EngineClient) -> int:
        info = await self.effective(client)
        return int(info["running"]) + int(info["queued"])


def _tiers(profile: Profile) -> dict[str, object]:
    """Options of the tiers, with the words that were asked for; what was not is the engine's own default."""
    options = {
        "--host-bytes": profile.hicache_host_bytes,
        "--disk-dir": profile.hicache_disk_dir,
        "--disk-bytes": profile.hicache_disk_bytes if profile.hicache_disk_dir is not None else None,
        "--write-policy": profile.hicache_write_policy,
    }
    return {name: value for name, value in options.items() if value is not None}


def _tier_bytes(profile: Profile) -> dict[str, int | None]:
    """The limits of the tiers that were asked for, None for a tier that must not be there."""
    host = {} if profile.hicache_host_bytes is None else {"host": profile.hicache_host_bytes or None}
    return host | {"disk": profile.hicache_disk_bytes if profile.hicache_disk_dir is not None else None}


def _backend_differences(profile: Profile, effective: dict[str, Any]) -> list[str]:
    wanted = profile.indexer.backend
    if wanted == "auto" or profile.flags.get("DSV4_ALLOW_FALLBACK"):
        return []
    return [
        f"backend of {choice['op']}: asked was {wanted}, in effect is {choice['selected']} ({choice['reason']})"
        for choice in effective.get("backends", [])
        if choice["selected"] != wanted
    ]
