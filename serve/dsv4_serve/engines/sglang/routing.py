"""The index path of SGLang's HIP backend, routed by operation: AITER's kernels where they pass, ours elsewhere."""

from __future__ import annotations

from dsv4_serve.engines.hooks import Hook
from dsv4_serve.engines.sglang import launches, workspaces

ADAPTER = "sglang.kernels.ops.attention.dsv4.fp4_indexer_hip"


INDEXER = "sglang.srt.layers.attention.dsv4.indexer"

HOOKS: tuple[Hook, ...] = (
    Hook(INDEXER, "C4IndexerBackendMixin.forward_c4_indexer", launches.in_step, "the phase of queries and keys"),
    Hook(ADAPTER, "aiter_q_indexer_fp4", launches.quantize_query, "query: RoPE, Hadamard, FP4", needed=True),
    Hook(ADAPTER, "aiter_k_indexer_fp4_cache_write", launches.write_keys, "key: norm to scatter", needed=True),
    Hook(ADAPTER, "aiter_fp4_paged_mqa_logits", launches.score, "decode and prefill scores", needed=True),
    Hook(ADAPTER, "rowgroup_paged_mqa_logits", launches.score_row_groups, "row-group scores", needed=True),
    Hook(ADAPTER, "aiter_has_fp4_rowgroup", workspaces.has_row_groups, "row groups without AITER's", needed=True),
    Hook(ADAPTER, "prepare_fp4_decode_workspace", workspaces.decode_workspace, "no unread schedule", needed=True),
    Hook(ADAPTER, "prepare_fp4_prefill_workspace", workspaces.prefill_workspace, "schedule by ours", needed=True),
)
