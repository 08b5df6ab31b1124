"""The SGLang command and environment of every profile, word for word, and that each toggle changes one of them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from dsv4_serve.engines.sglang import float32_products
from dsv4_serve.errors import PreflightError, UsageError
from dsv4_serve.flags import BY_NAME
from dsv4_serve.plan import make_plan
from dsv4_serve.profiles.load import load_profile, profile_names

COMMON = (
    "serve --model-path /models/{model} --served-model-name {model} --host 127.0.0.1 --port 0 --device cuda "
    "--enable-metrics --enable-cache-report --log-level-http warning --context-length 131072 "
    "--max-running-requests 256 --max-queued-requests 1024 {parallel} --kv-cache-dtype fp8_e4m3 {rest} "
    "--chunked-prefill-size 8192 --mem-fraction-static 0.85"
)
V4 = "--enable-deepseek-v4-fp4-indexer --reasoning-parser deepseek-v4 --tool-call-parser deepseekv4"
V41 = "--reasoning-parser deepseek-v41 --tool-call-parser deepseekv41 --speculative-algorithm DSPARK"
EAGLE = (
    "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4"
)
HICACHE = "--enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through"
TWO_NODES = "--nnodes 2 --node-rank 0 --dist-init-addr node-0:20000"
GOLDEN = {
    "v4-flash-tp4": ("DeepSeek-V4-Flash", "--tp-size 4 --ep-size 4", V4),
    "v4-pro-tp8": ("DeepSeek-V4-Pro", "--tp-size 8 --ep-size 8", V4),
    "v4-flash-tp8": ("DeepSeek-V4-Flash", "--tp-size 8 --ep-size 8", V4),
    "v4-pro-tp8-eagle": ("DeepSeek-V4-Pro", "--tp-size 8 --ep-size 8", f"{V4} {EAGLE}"),
    "v4-pro-tp8-hicache": ("DeepSeek-V4-Pro", "--tp-size 8 --ep-size 8", f"{V4} {HICACHE}"),
    "v4-pro-tp8-eagle-hicache": ("DeepSeek-V4-Pro", "--tp-size 8 --ep-size 8", f"{V4} {EAGLE} {HICACHE}"),
    "v4-pro-tp8-mooncake": ("DeepSeek-V4-Pro", "--tp-size 8 --ep-size 8", f"{V4} {HICACHE}"),
    "v4-pro-2nodes": ("DeepSeek-V4-Pro", f"--tp-size 16 --ep-size 16 {TWO_NODES}", V4),
    "v41-flash-tp2": ("DeepSeek-V4.1-Flash", "--tp-size 2 --ep-size 1", V41),
    "v41-flash-tp4": ("DeepSeek-V4.1-Flash", "--tp-size 4 --ep-size 4", V41),
    "v41-flash-tp8": ("DeepSeek-V4.1-Flash", "--tp-size 8 --ep-size 8", V41),
}
V4_SWITCHES = {
    "SGLANG_USE_AITER": "1",
    "SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP": "0",
    "SGLANG_HIP_FP4_INDEXER_ROWGROUP": "0",
    "SGLANG_HIP_DSV41_INDEX_K_PAGE8": "0",
    "SGLANG_DSV4_KV_LAYOUT": "v4",
    "DSV4_BACKEND": "auto",
    "DSV4_ALLOW_FALLBACK": "0",
    "DSV4_SHADOW_RECALL": "0",
}
V41_SWITCHES = V4_SWITCHES | {"SGLANG_HIP_FP4_INDEXER_ROWGROUP": "1", "SGLANG_DSV4_KV_LAYOUT": "v41"}

OWN_SWITCHES = {
    "v41-flash-tp2": {"SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": "1"},
    "v4-pro-tp8-mooncake": {"MOONCAKE_PROTOCOL": "rdma", "MOONCAKE_GLOBAL_SEGMENT_SIZE": "64gb"},
}
OWN_WORDS = {
    "v4-pro-tp8-mooncake": " --hicache-storage-backend mooncake --hicache-storage-prefetch-policy timeout",
}


def planned(profile: str, **toggles: str) -> tuple[list[str], dict[str, str]]:
    """Command after the program, and environment."""
    plan = make_plan({"DSV4_PROFILE": profile, **toggles}, {}).describe()
    program, *words = plan["command"]
    assert program == str(Path(sys.executable).with_name("sglang"))
    return words, plan["environment"]


def test_there_is_a_golden_line_for_every_sglang_profile() -> None:
    assert set(GOLDEN) == {name for name in profile_names() if load_profile(name).engine.name == "sglang"}


@pytest.mark.parametrize("name", GOLDEN)
def test_command_and_environment_word_for_word(name: str) -> None:
    model, parallel, rest = GOLDEN[name]
    words, environment = planned(name)
    assert shlex.join(words) == COMMON.format(model=model, parallel=parallel, rest=rest) + OWN_WORDS.get(name, "")
    assert environment == (V41_SWITCHES if name.startswith("v41") else V4_SWITCHES) | OWN_SWITCHES.get(name, {})


@pytest.mark.parametrize(
    ("toggle", "value", "gone", "new"),
    [
        ("DSV4_INDEXER_DTYPE", "fp8", "--enable-deepseek-v4-fp4-indexer", ""),
        ("DSV4_TP", "8", "--tp-size 4", "--tp-size 8"),
        ("DSV4_EP", "1", "--ep-size 4", "--ep-size 1"),
        ("DSV4_DP", "4", "", "--attn-dp-size 4 --enable-dp-lm-head"),
        ("DSV4_SPECULATIVE", "eagle", "", EAGLE),
        ("DSV4_HICACHE", "1", "", HICACHE),
        ("DSV4_MODEL", "/elsewhere/V4", "--model-path /models/DeepSeek-V4-Flash", "--model-path /elsewhere/V4"),
    ],
)
def test_a_toggle_changes_the_command(toggle: str, value: str, gone: str, new: str) -> None:
    before, after = (shlex.join(planned("v4-flash-tp4", **t)[0]) for t in ({}, {toggle: value}))
    assert gone in before
    assert new in after
    assert not gone or gone not in after
    assert not new or new not in before


@pytest.mark.parametrize(
    ("profile", "toggle", "value", "switch"),
    [
        ("v4-flash-tp4", "DSV4_ROWGROUP", "1", "SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP"),
        ("v41-flash-tp4", "DSV4_ROWGROUP", "0", "SGLANG_HIP_FP4_INDEXER_ROWGROUP"),
        ("v41-flash-tp4", "DSV4_PAGE8", "1", "SGLANG_HIP_DSV41_INDEX_K_PAGE8"),
        ("v4-flash-tp4", "DSV4_BACKEND", "gfx950", "DSV4_BACKEND"),
        ("v4-flash-tp4", "DSV4_ALLOW_FALLBACK", "1", "DSV4_ALLOW_FALLBACK"),
        ("v4-flash-tp4", "DSV4_SHADOW_RECALL", "1", "DSV4_SHADOW_RECALL"),
    ],
)
def test_a_toggle_changes_one_switch(profile: str, toggle: str, value: str, switch: str) -> None:
    before, after = planned(profile)[1], planned(profile, **{toggle: value})[1]
    assert {name for name in before if before[name] != after[name]} == {switch}
    assert after[switch] == value


def test_timing_reaches_the_engine_only_where_it_is_asked_for() -> None:
    assert "DSV4_INDEXER_TIMING" not in planned("v4-flash-tp4")[1]
    assert planned("v4-flash-tp4", DSV4_INDEXER_TIMING="100")[1]["DSV4_INDEXER_TIMING"] == "100"


def test_invariant_rows_reach_the_plugin_where_they_are_not_its_default() -> None:
    assert BY_NAME["DSV4_INVARIANT_ROWS"].default == float32_products.DEFAULT_ROWS
    assert "DSV4_INVARIANT_ROWS" not in planned("v4-flash-tp4")[1]
    for rows in ("0", "256"):
        assert planned("v4-flash-tp4", DSV4_INVARIANT_ROWS=rows)[1]["DSV4_INVARIANT_ROWS"] == rows


@pytest.mark.parametrize(
    ("toggle", "value", "told"),
    [
        ("DSV4_INDEXER_DTYPE", "bf16", "accepts fp4, fp8"),
        ("DSV4_KV_LAYOUT", "bf16", "accepts v4, v41"),
        ("DSV4_SPECULATIVE", "ngram", "accepts dspark, eagle, off"),
        ("DSV4_BACKEND", "hopper", "accepts aiter, auto, gfx950, portable, reference"),
    ],
)
def test_what_sglang_cannot_do_is_refused(toggle: str, value: str, told: str) -> None:
    with pytest.raises(PreflightError, match=rf"{toggle}=.*engine 'sglang' cannot do this; it {told}"):
        make_plan({"DSV4_PROFILE": "v4-flash-tp4", toggle: value}, {})


def test_a_conflict_is_refused_before_the_engine_is_asked() -> None:
    with pytest.raises(UsageError, match="DSV4_PAGE8=1"):
        make_plan({"DSV4_PROFILE": "v4-flash-tp4", "DSV4_PAGE8": "1"}, {})


def test_a_profile_may_settle_what_would_conflict_without_it() -> None:
    """Pages of 8 exclude the default layout v4, and the profile says v41."""
    assert make_plan({"DSV4_PROFILE": "v41-flash-tp4", "DSV4_PAGE8": "1"}, {}).resolved["DSV4_KV_LAYOUT"] == "v41"


def test_pool_size_and_own_words_of_a_profile(tmp_path: Path) -> None:
    """Without a number of tokens SGLang sizes its pools itself; a profile's own words come last and win."""
    text = (Path(__file__).parents[2] / "configs" / "profiles" / "v4-flash-tp4.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    text = text.replace("name: v4-flash-tp4", "name: mine").replace(
        "  name: sglang", "  name: sglang\n  max_total_tokens: 65536"
    )
    mine.write_text(text + "env:\n  SGLANG_USE_AITER: '0'\n  HSA_NO_SCRATCH_RECLAIM: '1'\n")
    words, environment = planned(str(mine))
    assert "--max-total-tokens 65536" in shlex.join(words)
    assert words[-2:] == ["--mem-fraction-static", "0.85"]
    assert environment == V4_SWITCHES | {"SGLANG_USE_AITER": "0", "HSA_NO_SCRATCH_RECLAIM": "1"}


def test_the_engine_may_live_in_another_environment() -> None:
    plan = make_plan({"DSV4_PROFILE": "v4-flash-tp4", "DSV4_ENGINE_PYTHON": "/opt/sglang/bin/python3"}, {}).describe()
    assert plan["command"][:2] == ["/opt/sglang/bin/sglang", "serve"]


def test_a_machine_without_gfx950_gets_no_hip_switches(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "configs" / "profiles" / "v4-flash-tp4.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("name: v4-flash-tp4", "name: mine").replace("arch: gfx950", "arch: cpu"))
    words, environment = planned(str(mine))
    assert environment == {}
    assert "--device cpu" in shlex.join(words)
