"""The commands of every vLLM profile, word for word; each is also parsed by vLLM itself in tests/vllm."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from dsv4_serve.errors import PreflightError, UsageError
from dsv4_serve.plan import make_plan
from dsv4_serve.profiles.load import load_profile, profile_names

COMMON = (
    "serve /models/DeepSeek-{model}-Flash --served-model-name DeepSeek-{model}-Flash --host 127.0.0.1 --port 0 "
    "--enable-prompt-tokens-details --disable-uvicorn-access-log --shutdown-timeout 5 --max-model-len 131072 "
    "--max-num-seqs 256 --max-num-queued-reqs 1024 --block-size {block} --{caching}-prefix-caching "
    "--tensor-parallel-size 8 --enable-expert-parallel --kv-cache-dtype fp8 "
    '--attention-config \'{{"indexer_kv_dtype": "{dtype}"}}\' --reasoning-parser {parser} --tool-call-parser {parser} '
    "--enable-auto-tool-choice"
)
V4 = {"model": "V4", "block": "256", "dtype": "fp8", "parser": "deepseek_v4"}
V41 = {"model": "V4.1", "block": "128", "dtype": "mxfp4", "parser": "deepseek_v41"}
GOLDEN = {
    "vllm-v4-flash-tp8": V4 | {"caching": "enable"},
    "vllm-v4-flash-tp8-nocache": V4 | {"caching": "disable"},
    "vllm-v41-flash-tp8": V41 | {"caching": "enable"},
    "vllm-v41-flash-tp8-nocache": V41 | {"caching": "disable"},
}
FIRST = "vllm-v4-flash-tp8"


def planned(profile: str, **toggles: str) -> tuple[str, dict[str, str]]:
    """Command after the program, and environment."""
    plan = make_plan({"DSV4_PROFILE": profile, **toggles}, {}).describe()
    program, *words = plan["command"]
    assert program == str(Path(sys.executable).with_name("vllm"))
    return shlex.join(words), plan["environment"]


def test_there_is_a_golden_line_for_every_vllm_profile() -> None:
    assert set(GOLDEN) == {name for name in profile_names() if load_profile(name).engine.name == "vllm"}


@pytest.mark.parametrize("name", GOLDEN)
def test_command_and_environment_word_for_word(name: str) -> None:
    words, environment = planned(name)
    assert words == COMMON.format(**GOLDEN[name])
    plugin = {"DSV4_BACKEND": "auto", "DSV4_ALLOW_FALLBACK": "0", "DSV4_INDEX_HADAMARD": "0"}
    assert environment == {"VLLM_ROCM_USE_AITER": "1"} | plugin


@pytest.mark.parametrize("toggle", ["DSV4_ALLOW_FALLBACK", "DSV4_INDEX_HADAMARD"])
def test_the_plugin_is_told_in_its_environment(toggle: str) -> None:
    assert planned(FIRST)[1][toggle] == "0"
    assert planned(FIRST, **{toggle: "1"})[1][toggle] == "1"


@pytest.mark.parametrize(
    ("toggle", "value", "gone", "new"),
    [
        ("DSV4_INDEXER_DTYPE", "fp4", '"fp8"}', '{"indexer_kv_dtype": "mxfp4"}'),
        ("DSV4_INDEXER_DTYPE", "bf16", '"fp8"}', '{"indexer_kv_dtype": "bf16"}'),
        ("DSV4_EP", "1", "--enable-expert-parallel", ""),
        ("DSV4_SPECULATIVE", "eagle", "", '\'{"method": "mtp", "num_speculative_tokens": 3}\''),
        ("DSV4_MODEL", "/elsewhere/V4", "serve /models/DeepSeek-V4-Flash", "serve /elsewhere/V4"),
    ],
)
def test_a_toggle_changes_the_command(toggle: str, value: str, gone: str, new: str) -> None:
    before, after = (planned(FIRST, **toggles)[0] for toggles in ({}, {toggle: value}))
    assert gone in before
    assert new in after
    assert not gone or gone not in after
    assert not new or new not in before


def test_kernels_compiled_ahead_of_time_and_their_backend_reach_the_plugin() -> None:
    _, environment = planned(FIRST, DSV4_KERNELS_DIR="/opt/kernels", DSV4_BACKEND="gfx950")
    assert (environment["DSV4_KERNELS_DIR"], environment["DSV4_BACKEND"]) == ("/opt/kernels", "gfx950")
    assert "DSV4_KERNELS_DIR" not in planned(FIRST)[1]


def test_the_index_format_is_always_written_out() -> None:
    """Left to itself, vLLM would take MXFP4 for V4 and FP8 for V4.1."""
    for name in GOLDEN:
        assert "indexer_kv_dtype" in planned(name)[0]


def test_several_machines_meet_at_rank_0() -> None:
    toggles = {"DSV4_NODES": "2", "DSV4_NODE_RANK": "1", "DSV4_NODE_ADDRESS": "10.0.0.1:29501", "DSV4_TP": "16"}
    words = planned(FIRST, **toggles, DSV4_EP="16")[0]
    assert "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29501" in words


def test_experts_are_spread_over_all_or_none() -> None:
    with pytest.raises(UsageError, match=r"DSV4_EP=4: engine 'vllm' accepts 1, or 8 \(TP x DP\)"):
        planned(FIRST, DSV4_EP="4")
    assert "--data-parallel-size 2" in planned(FIRST, DSV4_DP="2", DSV4_EP="16")[0]


@pytest.mark.parametrize(
    ("toggle", "value"), [("DSV4_ROWGROUP", "1"), ("DSV4_BACKEND", "hopper"), ("DSV4_SHADOW_RECALL", "1")]
)
def test_what_the_engine_cannot_do_is_refused(toggle: str, value: str) -> None:
    with pytest.raises(PreflightError, match=rf"{toggle}={value} .*engine 'vllm' cannot do this"):
        planned(FIRST, DSV4_INDEXER_DTYPE="fp4", **{toggle: value})


def test_v41_drafts_by_its_own_layers() -> None:
    words = planned("vllm-v41-flash-tp8", DSV4_SPECULATIVE="dspark")[0]
    assert '--speculative-config \'{"method": "dspark"}\'' in words
