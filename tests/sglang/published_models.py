"""The published models as far as SGLang's start-up reads a config.json: their geometry, no weights."""

from __future__ import annotations

from typing import Any

V4_FLASH: dict[str, Any] = {
    "num_hidden_layers": 43,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "o_lora_rank": 1024,
    "o_groups": 8,
    "index_topk": 512,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "num_hash_layers": 3,
    "num_nextn_predict_layers": 1,
    "compress_ratios": [0, 0, *([4, 128] * 20), 4],
    "max_position_embeddings": 1048576,
}
V4_PRO: dict[str, Any] = V4_FLASH | {
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "index_topk": 1024,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "routed_scaling_factor": 2.5,
    "compress_ratios": [128, 128, *([4, 128] * 29), 4],
}
V41_FLASH: dict[str, Any] = V4_FLASH | {
    "model_type": "deepseek_v41",
    "architectures": ["DeepseekV41ForCausalLM"],
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "q_lora_rank": 1280,
    "index_n_heads": 32,
    "n_routed_experts": 384,
    "moe_intermediate_size": 2304,
    "num_hash_layers": 0,
    "num_nextn_predict_layers": 0,
    "compress_ratios": [0, 0, *([2] * 18), *([1] * 20)],
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "n_mtp_layers": 3,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 2,
    "dspark_target_layer_ids": [37, 38, 39],
}
BY_NAME = {"DeepSeek-V4-Flash": V4_FLASH, "DeepSeek-V4-Pro": V4_PRO, "DeepSeek-V4.1-Flash": V41_FLASH}
