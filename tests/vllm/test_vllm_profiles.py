"""Every vLLM profile's command, parsed by the pinned engine's own parser, and what MXFP4 changes."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from vllm.config.attention import AttentionConfig
from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from dsv4_serve.engines import vllm_command
from dsv4_serve.engines.base import EngineRun
from dsv4_serve.profiles.load import load_profile, profile_names
from dsv4_serve.profiles.schema import Profile

PROFILES = [p for p in (load_profile(name) for name in profile_names()) if p.engine.name == "vllm"]


def parsed(profile: Profile) -> Namespace:
    """What vLLM makes of a profile's words after `vllm serve`."""
    _, serve, model, *words = vllm_command.command(profile, EngineRun(Path("/models/m"), 30000))
    assert serve == "serve"
    arguments: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([*words, "--model", model])
    return arguments


def with_index(profile: Profile, dtype: str) -> Profile:
    return profile.model_copy(update={"indexer": profile.indexer.model_copy(update={"dtype": dtype})})


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_vllm_takes_every_word(profile: Profile) -> None:
    found = parsed(profile)
    assert (found.host, found.port, found.served_model_name) == ("127.0.0.1", 30000, [profile.model.name])
    assert (found.tensor_parallel_size, found.enable_expert_parallel) == (8, True)
    assert found.enable_prefix_caching is profile.engine.prefix_caching
    assert found.block_size == (128 if profile.kv_layout == "v41" else 256)
    assert found.max_num_queued_reqs == profile.engine.max_queued_requests
    assert found.reasoning_parser in ReasoningParserManager.list_registered()
    assert found.tool_call_parser in ToolParserManager.list_registered()


@pytest.mark.parametrize(("ours", "theirs"), [("fp4", "mxfp4"), ("fp8", "fp8"), ("bf16", "bf16")])
def test_the_index_format_is_always_told(ours: str, theirs: str) -> None:
    for profile in PROFILES:
        config = parsed(with_index(profile, ours)).attention_config
        assert (config if isinstance(config, dict) else vars(config))["indexer_kv_dtype"] == theirs
        assert AttentionConfig(indexer_kv_dtype=theirs).indexer_kv_dtype == theirs


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_mxfp4_changes_the_index_and_nothing_else(profile: Profile) -> None:
    """The dtype of the main KV cache, its blocks and everything else that is asked for stay as they are."""
    fp8, fp4 = vars(parsed(with_index(profile, "fp8"))), vars(parsed(with_index(profile, "fp4")))
    assert {name for name in fp8 if fp8[name] != fp4[name]} == {"attention_config"}
    assert fp4["kv_cache_dtype"] == "fp8"
