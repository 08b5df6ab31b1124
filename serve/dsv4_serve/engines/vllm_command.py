"""The command line and environment of vLLM for a profile: pure functions, so that golden tests hold every word.

Everything that a profile decides is written out, also where it is the engine's default. That holds above all for the
format of the index: left to itself, vLLM 0.33 takes MXFP4 for V4 on gfx950 and FP8 for V4.1.
"""

from __future__ import annotations

import json

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.engine_command import Option, program, words
from dsv4_serve.errors import UsageError
from dsv4_serve.nodes import Nodes
from dsv4_serve.profiles.schema import Profile

INDEX_DTYPES = {"fp4": "mxfp4", "fp8": "fp8", "bf16": "bf16"}
GENERATIONS = {"v4": "deepseek_v4", "v41": "deepseek_v41"}
"""Names of vLLM's parsers; the layout of the main KV cache tells the generation."""
BLOCK_SIZES = {"v4": 256, "v41": 128}
"""Tokens of context a block, the only size that vLLM's index backend takes for V4 (64 keys of ratio 4), and the larger
of the two that it takes for V4.1 (128 keys of ratio 1, 64 of ratio 2)."""
SPECULATIVE: dict[str, dict[str, str | int] | None] = {
    "off": None,
    # The checkpoint's MTP layer, drafting three tokens one after the other.
    "eagle": {"method": "mtp", "num_speculative_tokens": 3},
    # The block and the layers come from the checkpoint.
    "dspark": {"method": "dspark"},
}


def command(profile: Profile, run: EngineRun) -> list[str]:
    """`vllm serve ...`: what the profile asks for, then its own words, which win over the same option before."""
    options: dict[str, Option] = {
        **_server(profile, run),
        **_sizes(profile),
        **_parallelism(profile),
        **_model(profile),
    }
    return [program(profile, "vllm"), "serve", str(run.model_dir), *words(options), *profile.engine.extra_args]


def environment(profile: Profile) -> dict[str, str]:
    """AITER on, without which vLLM's index has no FP4 path, what our plugin reads, then the profile's own variables."""
    if profile.hardware.arch != "gfx950":
        return dict(profile.env)
    toggles = profile.toggles()
    plugin = {
        "DSV4_BACKEND": profile.indexer.backend,
        "DSV4_ALLOW_FALLBACK": str(int(bool(toggles.get("DSV4_ALLOW_FALLBACK")))),
        "DSV4_INDEX_HADAMARD": str(int(bool(toggles.get("DSV4_INDEX_HADAMARD")))),
    }
    kernels = toggles.get("DSV4_KERNELS_DIR")
    compiled = {} if kernels is None else {"DSV4_KERNELS_DIR": str(kernels)}
    return {"VLLM_ROCM_USE_AITER": "1"} | plugin | compiled | profile.env


def attention_config(profile: Profile) -> dict[str, str]:
    """vLLM's --attention-config, as it must also report it."""
    return {"indexer_kv_dtype": INDEX_DTYPES[profile.indexer.dtype]}


def _server(profile: Profile, run: EngineRun) -> dict[str, Option]:
    return {
        "--served-model-name": profile.model.name,
        "--host": "127.0.0.1",
        "--port": run.port,
        "--enable-prompt-tokens-details": None,
        "--disable-uvicorn-access-log": None,
        # The launcher drains; what still runs when it stops the engine was given its time.
        "--shutdown-timeout": 5,
    }


def _sizes(profile: Profile) -> dict[str, Option]:
    return {
        "--max-model-len": profile.model.context_length,
        "--max-num-seqs": profile.engine.max_running_requests,
        "--max-num-queued-reqs": profile.engine.max_queued_requests,
        "--block-size": BLOCK_SIZES[profile.kv_layout],
        "--enable-prefix-caching" if profile.engine.prefix_caching else "--disable-prefix-caching": None,
    }


def _parallelism(profile: Profile) -> dict[str, Option]:
    """vLLM spreads experts over all of TP x DP, or over none."""
    if profile.ep not in (1, profile.tp * profile.dp):
        accepted = f"1, or {profile.tp * profile.dp} (TP x DP)"
        raise UsageError(f"DSV4_EP={profile.ep}: engine 'vllm' accepts {accepted}")
    return {
        "--tensor-parallel-size": profile.tp,
        **({"--data-parallel-size": profile.dp} if profile.dp > 1 else {}),
        **({"--enable-expert-parallel": None} if profile.ep > 1 else {}),
        **_nodes(Nodes.of(profile.toggles())),
    }


def _nodes(nodes: Nodes) -> dict[str, Option]:
    if nodes.count == 1 or nodes.address is None:
        return {}
    host, _, port = nodes.address.rpartition(":")
    return {"--nnodes": nodes.count, "--node-rank": nodes.rank, "--master-addr": host, "--master-port": port}


def _model(profile: Profile) -> dict[str, Option]:
    generation = GENERATIONS[profile.kv_layout]
    speculative = SPECULATIVE[profile.speculative]
    return {
        "--kv-cache-dtype": "fp8",
        "--attention-config": json.dumps(attention_config(profile)),
        "--reasoning-parser": generation,
        "--tool-call-parser": generation,
        "--enable-auto-tool-choice": None,
        **({} if speculative is None else {"--speculative-config": json.dumps(speculative)}),
    }
