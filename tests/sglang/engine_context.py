"""SGLang's process-wide configuration, published as its scheduler does it: from a command line, on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# The geometry that the engine insists on (head_dim, page sizes, 64 index heads), the rest small.
CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "compress_ratios": [0, 4, 128],
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_nope_head_dim": 448,
    "qk_rope_head_dim": 64,
    "v_head_dim": 512,
    "q_lora_rank": 128,
    "o_lora_rank": 128,
    "o_groups": 8,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 64,
    "sliding_window": 128,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 4096,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "intermediate_size": 128,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "n_group": 1,
    "topk_group": 1,
    "num_hash_layers": 0,
    "first_k_dense_replace": 0,
    "moe_layer_freq": 1,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 4,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "vocab_size": 1024,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def write_model(directory: Path, **changes: Any) -> Path:
    """A model directory with a config.json and nothing else."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    return directory


@contextmanager
def engine_of(line: list[str]) -> Iterator[Any]:
    """The resolved ServerArgs of `sglang serve` with these words, published until the block ends."""
    from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
    from sglang.srt.server_args import prepare_server_args

    before = dict(os.environ)
    try:
        arguments = prepare_server_args(line)
        reset_context()
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0))
        yield arguments
    finally:
        reset_context()
        # SGLang sets variables for itself while it resolves its arguments; they would reach later tests' processes.
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def engine(model: Path, *flags: str) -> Iterator[Any]:
    """The same for a model of this directory, which has no weights and no tokenizer."""
    with engine_of(["--model-path", str(model), "--load-format", "dummy", "--skip-tokenizer-init", *flags]) as made:
        yield made


def pool_configurator(arguments: Any) -> Any:
    """SGLang's configurator of the published engine, which reads this much of the model runner."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_executor.pool_configurator import DSV4PoolConfigurator
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    model = ModelConfig.from_server_args(arguments)
    runner = SimpleNamespace(
        kv_cache_dtype_str="auto",
        model_config=model,
        layer_info=SimpleNamespace(start_layer=0, end_layer=len(model.compress_ratios)),
        pp_size=1,
        spec_algorithm=SpeculativeAlgorithm.NONE,
        sliding_window_size=128,
        page_size=256,
        attn_dp_size=1,
        is_hybrid_swa=True,
    )
    return DSV4PoolConfigurator(runner)


def token_pool(arguments: Any, tokens: int) -> Any:
    """SGLang's token pool of the published engine for `tokens` tokens, sized by its own configurator."""
    import torch
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool, select_dsv4_kv_layout

    configurator = pool_configurator(arguments)
    sizes = configurator.calculate_pool_sizes_from_max_tokens(tokens, 256)
    main, compressed = select_dsv4_kv_layout()
    return DeepSeekV4TokenToKVPool(
        max_num_reqs=arguments.max_running_requests,
        swa_size=sizes.swa_max_total_num_tokens,
        c4_size=sizes.c4_max_total_num_tokens,
        c128_size=sizes.c128_max_total_num_tokens,
        c4_state_pool_size=sizes.c4_state_pool_size,
        c128_state_pool_size=sizes.c128_state_pool_size,
        page_size=256,
        swa_page_size=256,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32,
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        indexer_head_dim=128,
        layer_num=len(configurator.stage_compress_ratios),
        device="cpu",
        enable_memory_saver=False,
        compression_ratios=configurator.stage_compress_ratios,
        full_size=tokens,
        kv_source_layers=list(ModelConfig.from_server_args(arguments).hf_config.kv_source_layer_ids),
        kv_layout=main,
        compressed_kv_layout=compressed,
    )
