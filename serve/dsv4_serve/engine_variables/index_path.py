"""SGLang's variables of the index, of the KV layout and of the compressor."""

from __future__ import annotations

from dsv4_serve.engine_variables.variable import FRACTION, INTEGER, SWITCH, TEXT, Variable, choice

INDEX: tuple[Variable, ...] = (
    Variable("SGLANG_DSV4_FP4_LOGITS_BUDGET_MB", INTEGER, 2048, "MiB of the block of prefill logits, kept for ever"),
    Variable("SGLANG_HIP_FP4_INDEXER_ROWGROUP", SWITCH, True, "V4.1: decode and verify by row groups", "DSV4_ROWGROUP"),
    Variable(
        "SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP", SWITCH, False, "V4: decode and verify by row groups", "DSV4_ROWGROUP"
    ),
    Variable("SGLANG_HIP_DSV41_INDEX_K_PAGE8", SWITCH, False, "V4.1: index keys in pages of 8 slots", "DSV4_PAGE8"),
    Variable("SGLANG_OPT_USE_TOPK_V2", SWITCH, True, "the length-aware top-k, which needs no mask behind a context"),
    Variable("SGLANG_DSA_FUSE_TOPK", SWITCH, True, "top-k and page table in one kernel; off for the torch top-k"),
    Variable("SGLANG_DSA_TOPK_FLASHINFER_DETERMINISTIC", SWITCH, False, "flashinfer's top-k in a fixed order"),
    Variable("SGLANG_DSA_TOPK_FLASHINFER_TIE_BREAK", TEXT, None, "which of two equal scores flashinfer takes"),
    Variable("SGLANG_OPT_USE_AITER_INDEXER", SWITCH, False, "FP8 index: scores by AITER"),
    Variable("SGLANG_OPT_USE_TILELANG_INDEXER", SWITCH, False, "FP8 index: scores by TileLang"),
    Variable("SGLANG_FP8_PAGED_MQA_LOGITS_TORCH", SWITCH, False, "FP8 index: scores by torch, slow"),
    Variable("SGLANG_DSA_HIP_DISABLE_PRESHUFFLE", SWITCH, False, "FP8 index: keys in the order of their slots"),
    Variable("SGLANG_DSA_MQA_LOGITS_FREE_MEM_FRACTION", FRACTION, "0.2", "FP8 index: share of free memory for scores"),
    Variable("SGLANG_OPT_DSV4_NONPAGED_INDEXER", SWITCH, True, "CUDA: long prefills score gathered keys"),
    Variable("SGLANG_OPT_DSV4_NONPAGED_INDEXER_MIN_QUERY_TOKENS", INTEGER, 8192, "CUDA: from how many rows on"),
    Variable("SGLANG_OPT_USE_JIT_INDEXER_METADATA", SWITCH, True, "index metadata by a compiled kernel"),
    Variable("SGLANG_OPT_DSV41_BF16_INDEX_LOGITS", SWITCH, None, "SM100: bf16 scores; ROCm's are always float32"),
)

LAYOUT: tuple[Variable, ...] = (
    Variable(
        "SGLANG_DSV4_KV_LAYOUT",
        choice("v4", "v41", "v41_new", "auto"),
        "v4",
        "rows of main KV; v41 needs gfx950 with the aiter_sparse attention",
        "DSV4_KV_LAYOUT",
    ),
    Variable("SGLANG_DSV4_COMPRESSED_KV_LAYOUT", choice("auto", "fp8", "fp4"), "auto", "rows of compressed KV"),
    Variable("SGLANG_DSV4_UNIFIED_KV_FP8", SWITCH, False, "unified KV in two FP8 pools"),
    Variable("SGLANG_DSV4_USE_BF16_KV_QUANT_SOURCE", SWITCH, False, "KV is rounded to bf16 before it is quantised"),
    Variable("SGLANG_OPT_USE_ONLINE_COMPRESS", SWITCH, False, "CUDA: C128 keeps one running state"),
    Variable("SGLANG_EXPERIMENTAL_ONLINE_C128_MTP", SWITCH, False, "CUDA: the same with draft tokens"),
    Variable("SGLANG_DSV4_COMPRESS_STATE_DTYPE", TEXT, "float32", "dtype of the compressor's pending tokens"),
    Variable("SGLANG_DSV4_DECODER_TAIL_GRAPH_MAX_ROWS", INTEGER, 2048, "V4.1: rows of the late layers' graph"),
    Variable("SGLANG_DSV4_DECODER_TAIL_GRAPH_MIN_PREFILL_TOKENS", INTEGER, 2048, "V4.1: prefills that use it"),
)
