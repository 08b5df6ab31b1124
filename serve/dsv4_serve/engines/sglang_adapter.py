"""The adapter of SGLang 0.5.23."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import Metric

from dsv4_serve.engines import inside_metrics, sglang_command, sglang_metrics
from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.client import EngineClient, EngineUnreachableError
from dsv4_serve.engines.first_generation import generate_once
from dsv4_serve.engines.metric_rules import parse
from dsv4_serve.flags import Value
from dsv4_serve.nodes import Nodes
from dsv4_serve.profiles.schema import Profile

# Live states of every rank, and what the manifest must not show.
OMITTED = frozenset({"internal_states", "launch_command", "api_key", "admin_api_key", "ssl_keyfile_password"})
# What a machine beyond the first answers with: a health route and nothing else.
WORKER = {"node_worker": True}
PLUGIN = "dsv4_plugin"
INSTALL = "is this distribution installed in the engine's environment?"
ALGORITHMS = {"off": None, "eagle": "EAGLE", "dspark": "DSPARK"}


class SglangAdapter:
    """SGLang as it is published, on gfx950 with AITER beneath."""

    name = "sglang"
    # Not /health: that one generates a token whenever the engine is idle, and takes a second.
    liveness = "/ping"
    accepts: Mapping[str, frozenset[Value]] = {
        "DSV4_INDEX_HADAMARD": frozenset({False}),
        "DSV4_INDEXER_DTYPE": frozenset({"fp4", "fp8"}),
        "DSV4_KV_LAYOUT": frozenset({"v4", "v41"}),
        "DSV4_BACKEND": frozenset({"auto", "aiter", "gfx950", "portable", "reference"}),
        "DSV4_SPECULATIVE": frozenset({"off", "eagle", "dspark"}),
        # Sized by --hicache-ratio: SGLang refuses bytes for this model.
        "DSV4_HICACHE_HOST_BYTES": frozenset({None}),
        "DSV4_HICACHE_DISK_DIR": frozenset({None}),
    }

    def __init__(self, run: EngineRun) -> None:
        self.run = run
        self._compiled_before: float | None = None

    def command(self, profile: Profile) -> list[str]:
        return sglang_command.command(profile, self.run)

    def environment(self, profile: Profile) -> dict[str, str]:
        return sglang_command.environment(profile)

    async def ready(self, client: EngineClient) -> bool:
        effective = await self.effective(client)
        if effective == WORKER:
            return True
        await generate_once(client, effective["served_model_name"])
        self._compiled_before = inside_metrics.compile_events(parse(await client.get_text("/metrics")))
        return True

    async def effective(self, client: EngineClient) -> dict[str, Any]:
        try:
            info = await client.get_json("/server_info")
        except EngineUnreachableError as error:
            if error.status != 404:
                raise
            return dict(WORKER)
        if not isinstance(info, dict):
            raise EngineUnreachableError(f"/server_info: expected an object, found {type(info).__name__}")
        reported = {name: value for name, value in info.items() if name not in OMITTED}
        plugin = {PLUGIN: _plugin(info.get("internal_states") or [])}
        return reported | plugin | {"startup_phases": _phases(info.get("startup_time") or {})}

    def differences(self, profile: Profile, effective: dict[str, Any]) -> list[str]:
        nodes = Nodes.of(profile.toggles())
        if effective == WORKER:
            return [] if nodes.worker else [f"node_rank: asked was {nodes.rank}, in effect is a worker's, above 0"]
        told = [
            f"{name}: asked was {wanted}, in effect is {effective.get(name, 'not reported')}"
            for name, wanted in _asked(profile, nodes).items()
            if name not in effective or effective[name] != wanted
        ]
        if profile.hardware.arch == "gfx950" and not effective.get(PLUGIN):
            told.append(
                f"{PLUGIN}: asked was loaded in every replica, in effect is {effective.get(PLUGIN)} ({INSTALL})"
            )
        return told

    def translate(self, text: str) -> Iterable[Metric]:
        return sglang_metrics.translate(text, self._compiled_before)

    async def running(self, client: EngineClient) -> int:
        answer = await client.get_json("/v1/loads?include=core")
        return sum(int(load["num_running_reqs"]) + int(load["num_waiting_reqs"]) for load in answer["loads"])


def _asked(profile: Profile, nodes: Nodes) -> dict[str, Any]:
    """What /server_info must report, by its names."""
    reasoning, tools = sglang_command.PARSERS[profile.kv_layout]
    return {
        "served_model_name": profile.model.name,
        "tp_size": profile.tp,
        "ep_size": profile.ep,
        "attn_dp_size": profile.dp,
        "nnodes": nodes.count,
        "node_rank": nodes.rank,
        "context_length": profile.model.context_length,
        "max_queued_requests": profile.engine.max_queued_requests,
        "kv_cache_dtype": "fp8_e4m3",
        "attention_backend": "dsv4",
        "enable_deepseek_v4_fp4_indexer": sglang_command.fp4_flag(profile),
        "enable_hierarchical_cache": profile.hicache,
        "speculative_algorithm": ALGORITHMS[profile.speculative],
        "reasoning_parser": reasoning,
        "tool_call_parser": tools,
        "enable_metrics": True,
        "enable_cache_report": True,
    }


def _plugin(states: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the plugin says of the first replica; None unless every replica has it."""
    reports = [state.get(PLUGIN) for state in states]
    return reports[0] if reports and all(reports) else None


def _phases(startup: Mapping[str, Any]) -> dict[str, float]:
    """SGLang's start-up times by phase; the graph captures are grouped one level deeper."""
    phases: dict[str, float] = {}
    for name, seconds in startup.items():
        if isinstance(seconds, Mapping):
            phases |= {f"{name}_{inner}": float(value) for inner, value in seconds.items()}
        else:
            phases[name] = float(seconds)
    return phases
