"""The tiny DeepSeek-V4.1's config.json: that of the tiny V4 but for what V4.1 has of its own."""

from __future__ import annotations

from typing import Any

from ..tiny_config import TINY_CONFIG

ABSENT = ("num_hash_layers", "attention_bias", "attention_dropout")
"""Fields of V4 that V4.1 does not have."""

TINY_V41_CONFIG: dict[str, Any] = {
    **{name: value for name, value in TINY_CONFIG.items() if name not in ABSENT},
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "moe_intermediate_size": 128,
    "num_hidden_layers": 6,
    "q_lora_rank": 64,
    "q_head_norm": False,
    "compress_ratios": [0, 2, 2, 1, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
    "index_n_heads": 32,
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 64,
    "candidate_block_size": 8,
    "hc_pre_from_prev_sublayer": True,
    "rms_norm_eps": 1e-20,
    "engram_layer_ids": [1, 4],
    "engram_num_embeddings": [3144, 3424],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 500,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 245,
}
