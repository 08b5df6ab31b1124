"""The adapter of SGLang 0.5.23."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Metric

from dsv4_serve.engines import sglang_command, sglang_metrics
from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.client import EngineClient, EngineUnreachableError
from dsv4_serve.flags import Value
from dsv4_serve.profiles.schema import Profile

# The first generation compiles what the image did not: minutes, once.
FIRST_GENERATION_SECONDS = 600.0
# Live states of every rank, and what the manifest must not show.
OMITTED = frozenset({"internal_states", "launch_command", "api_key", "admin_api_key", "ssl_keyfile_password"})
ALGORITHMS = {"off": None, "eagle": "EAGLE", "dspark": "DSPARK"}


class SglangAdapter:
    """SGLang as it is published, on gfx950 with AITER beneath."""

    name = "sglang"
    accepts: Mapping[str, frozenset[Value]] = {
        "DSV4_INDEXER_DTYPE": frozenset({"fp4", "fp8"}),
        "DSV4_KV_LAYOUT": frozenset({"v4", "v41"}),
        "DSV4_BACKEND": frozenset({"auto", "aiter"}),
        "DSV4_SHADOW_RECALL": frozenset({False}),
        # Sized by --hicache-ratio: SGLang refuses bytes for this model.
        "DSV4_HICACHE_HOST_BYTES": frozenset({None}),
        "DSV4_HICACHE_DISK_DIR": frozenset({None}),
    }

    def __init__(self, run: EngineRun) -> None:
        self.run = run

    def command(self, profile: Profile) -> list[str]:
        return sglang_command.command(profile, self.run)

    def environment(self, profile: Profile) -> dict[str, str]:
        return sglang_command.environment(profile)

    async def ready(self, client: EngineClient) -> bool:
        model = (await self.effective(client))["served_model_name"]
        request = {"model": model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
        answer = await client.post_json("/v1/completions", request, FIRST_GENERATION_SECONDS)
        if not answer.get("choices") or answer.get("usage", {}).get("completion_tokens", 0) < 1:
            raise EngineUnreachableError(f"the first generation gave no token: {answer}")
        return True

    async def effective(self, client: EngineClient) -> dict[str, Any]:
        info = await client.get_json("/server_info")
        if not isinstance(info, dict):
            raise EngineUnreachableError(f"/server_info: expected an object, found {type(info).__name__}")
        reported = {name: value for name, value in info.items() if name not in OMITTED}
        return reported | {"startup_phases": _phases(info.get("startup_time") or {})}

    def differences(self, profile: Profile, effective: dict[str, Any]) -> list[str]:
        asked = {
            "served_model_name": profile.model.name,
            "tp_size": profile.tp,
            "ep_size": profile.ep,
            "attn_dp_size": profile.dp,
            "context_length": profile.model.context_length,
            "kv_cache_dtype": "fp8_e4m3",
            "attention_backend": "dsv4",
            "enable_deepseek_v4_fp4_indexer": sglang_command.fp4_flag(profile),
            "enable_hierarchical_cache": profile.hicache,
            "speculative_algorithm": ALGORITHMS[profile.speculative],
        }
        return [
            f"{name}: asked was {wanted}, in effect is {effective.get(name, 'not reported')}"
            for name, wanted in asked.items()
            if name not in effective or effective[name] != wanted
        ]

    def translate(self, text: str) -> Iterable[Metric]:
        return sglang_metrics.translate(text)

    async def running(self, client: EngineClient) -> int:
        answer = await client.get_json("/v1/loads?include=core")
        return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in answer["loads"])


def _phases(startup: Mapping[str, Any]) -> dict[str, float]:
    """SGLang's start-up times by phase; the graph captures are grouped one level deeper."""
    phases: dict[str, float] = {}
    for name, seconds in startup.items():
        if isinstance(seconds, Mapping):
            phases |= {f"{name}_{inner}": float(value) for inner, value in seconds.items()}
        else:
            phases[name] = float(seconds)
    return phases
