"""The tiny models: production's geometry for everything that a cache stores, small in everything else.

Head dimensions, index heads, window, ratios, page size and row formats are the production model's, so bytes per token
and layer are too. Hidden size, depth, query heads and experts are small.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .families import family_of
from .tokenizer import write_tokenizer
from .v41.tiny_config import TINY_V41_CONFIG

TINY_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "torch_dtype": "bfloat16",
    "vocab_size": 288,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "hidden_size": 192,
    "hidden_act": "silu",
    "moe_intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 96,
    "o_groups": 2,
    "o_lora_rank": 96,
    "compress_ratios": [0, 4, 128, 4],
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 64,
    "sliding_window": 128,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "num_hash_layers": 1,
    "num_nextn_predict_layers": 0,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 6,
    "hc_eps": 1e-06,
    "rms_norm_eps": 1e-06,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "use_cache": True,
}


TINY_CONFIGS: dict[str, dict[str, Any]] = {"v4": TINY_CONFIG, "v41": TINY_V41_CONFIG}
"""By the name of the family that `dsv4 tiny-model` takes."""


def write_tiny_model(
    directory: Path, seed: int = 0, overrides: dict[str, Any] | None = None, family: str = "v4"
) -> None:
    """Write config.json, model.safetensors and tokenizer.json of a random tiny model.

    The same seed, overrides and family write the same bytes. `overrides` replaces fields of the configuration (for
    tests). Raises KeyError for another family than those of TINY_CONFIGS.
    """
    raw = {**TINY_CONFIGS[family], **(overrides or {})}
    kind = family_of(raw, "TINY_CONFIGS")
    config = kind.parse(raw, "TINY_CONFIGS")
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: random_tensor(name, shape, config.n_routed_experts, generator)
        for name, shape in kind.tensor_shapes(config).items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    write_tokenizer(directory)


def random_tensor(name: str, shape: tuple[int, ...], experts: int, generator: torch.Generator) -> torch.Tensor:
    """Values that exercise every path: nothing is left at a neutral zero or one."""

    def normal(std: float) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * std

    if name.endswith("tid2eid"):
        order = torch.stack([torch.randperm(experts, generator=generator) for _ in range(shape[0])])
        return order[:, : shape[1]].contiguous()
    if name.endswith("norm.weight"):
        return 1 + normal(0.1)
    if name.endswith(("_scale", "_base", "gate.bias", "attn_sink", ".ape")):
        return normal(0.5)
    if name.endswith("_fn"):
        return normal(1 / math.sqrt(shape[-1]))
    gain = 0.4 if name == "head.weight" else 1.0
    # Unit-gain projections keep activations and index scores of order one at any width, logits a little below.
    return normal(gain / math.sqrt(shape[-1])).to(torch.bfloat16)
