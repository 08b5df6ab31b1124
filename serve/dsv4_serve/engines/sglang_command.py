"""The command line and environment of SGLang for a profile: pure functions, so that golden tests hold every word.

Everything that a profile decides is written out, also where it is the engine's default, so that a new default of the
engine changes nothing here.
"""

from __future__ import annotations

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.engine_command import Option, program, words
from dsv4_serve.engines.sglang.float32_products import DEFAULT_ROWS
from dsv4_serve.flags import Value
from dsv4_serve.nodes import Nodes
from dsv4_serve.profiles.schema import Profile

PARSERS = {"v4": ("deepseek-v4", "deepseekv4"), "v41": ("deepseek-v41", "deepseekv41")}
"""Parsers of reasoning and tool calls by generation; the layout of the main KV cache tells the generation."""

EAGLE: dict[str, Option] = {
    "--speculative-algorithm": "EAGLE",
    "--speculative-num-steps": 3,
    "--speculative-eagle-topk": 1,
    "--speculative-num-draft-tokens": 4,
}
"""The checkpoint's one MTP layer, drafting a chain of three: V4 allows no tree."""

# DSpark takes its block size and layers from the checkpoint.
SPECULATIVE: dict[str, dict[str, Option]] = {
    "off": {},
    "eagle": EAGLE,
    "dspark": {"--speculative-algorithm": "DSPARK"},
}

# The split index pool is mirrored on the host by whole pages; SGLang refuses a size in bytes for this model.
HICACHE: dict[str, Option] = {"--enable-hierarchical-cache": None, "--hicache-ratio": 2}


def command(profile: Profile, run: EngineRun) -> list[str]:
    """`sglang serve ...`: what the profile asks for, then its own words, which win over the same option before."""
    options: dict[str, Option] = {
        **_server(profile, run),
        **_sizes(profile),
        **_parallelism(profile),
        **_model(profile),
        **SPECULATIVE[profile.speculative],
        **(HICACHE | {"--hicache-write-policy": profile.hicache_write_policy} if profile.hicache else {}),
    }
    return [program(profile, "sglang"), "serve", *words(options), *profile.engine.extra_args]


def environment(profile: Profile) -> dict[str, str]:
    """SGLang's switches of the index path, what our plugin reads, then the profile's own variables."""
    if profile.hardware.arch != "gfx950":
        return dict(profile.env)
    toggles = profile.toggles()
    v41 = profile.kv_layout == "v41"
    rowgroup, page8 = bool(toggles.get("DSV4_ROWGROUP")), bool(toggles.get("DSV4_PAGE8"))
    switches = {
        "SGLANG_USE_AITER": True,
        "SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP": rowgroup and not v41,
        "SGLANG_HIP_FP4_INDEXER_ROWGROUP": rowgroup and v41,
        "SGLANG_HIP_DSV41_INDEX_K_PAGE8": page8,
    }
    texts = {"SGLANG_DSV4_KV_LAYOUT": profile.kv_layout}
    return {name: str(int(on)) for name, on in switches.items()} | texts | _plugin(profile, toggles) | profile.env


def _plugin(profile: Profile, toggles: dict[str, Value]) -> dict[str, str]:
    """The toggles that the plugin reads inside the engine's processes, which inherit none."""
    named = {
        "DSV4_BACKEND": profile.indexer.backend,
        "DSV4_ALLOW_FALLBACK": str(int(bool(toggles.get("DSV4_ALLOW_FALLBACK")))),
        "DSV4_SHADOW_RECALL": str(int(bool(toggles.get("DSV4_SHADOW_RECALL")))),
    }
    given = {name: toggles.get(name) for name in ("DSV4_KERNELS_DIR", "DSV4_INDEXER_TIMING")}
    asked = {name: str(value) for name, value in given.items() if value}
    rows = toggles.get("DSV4_INVARIANT_ROWS", DEFAULT_ROWS)
    return named | asked | ({} if rows == DEFAULT_ROWS else {"DSV4_INVARIANT_ROWS": str(rows)})


def fp4_flag(profile: Profile) -> bool:
    """Whether SGLang needs its flag for FP4 index keys: V4.1's are FP4 by definition."""
    return profile.kv_layout != "v41" and profile.indexer.dtype == "fp4"


def _server(profile: Profile, run: EngineRun) -> dict[str, Option]:
    return {
        "--model-path": run.model_dir,
        "--served-model-name": profile.model.name,
        "--host": "127.0.0.1",
        "--port": run.port,
        "--device": "cpu" if profile.hardware.arch == "cpu" else "cuda",
        "--enable-metrics": None,
        "--enable-cache-report": None,
        "--log-level-http": "warning",
    }


def _sizes(profile: Profile) -> dict[str, Option]:
    """Without a number of tokens the engine sizes its pools by the memory that is left beside the weights."""
    engine = profile.engine
    tokens = {"--max-total-tokens": engine.max_total_tokens} if "max_total_tokens" in engine.model_fields_set else {}
    return {
        "--context-length": profile.model.context_length,
        **tokens,
        "--max-running-requests": engine.max_running_requests,
        "--max-queued-requests": engine.max_queued_requests,
    }


def _parallelism(profile: Profile) -> dict[str, Option]:
    attention = {"--attn-dp-size": profile.dp, "--enable-dp-lm-head": None} if profile.dp > 1 else {}
    return {"--tp-size": profile.tp, "--ep-size": profile.ep, **attention, **_nodes(Nodes.of(profile.toggles()))}


def _nodes(nodes: Nodes) -> dict[str, Option]:
    if nodes.count == 1:
        return {}
    return {"--nnodes": nodes.count, "--node-rank": nodes.rank, "--dist-init-addr": nodes.address}


def _model(profile: Profile) -> dict[str, Option]:
    reasoning, tools = PARSERS[profile.kv_layout]
    return {
        "--kv-cache-dtype": "fp8_e4m3",
        **({"--enable-deepseek-v4-fp4-indexer": None} if fp4_flag(profile) else {}),
        "--reasoning-parser": reasoning,
        "--tool-call-parser": tools,
    }
