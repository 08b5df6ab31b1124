"""SGLang's variables of ROCm: AITER, attention, dense layers, hyper-connections."""

from __future__ import annotations

from dsv4_serve.engine_variables.variable import INTEGER, SWITCH, TEXT, Variable, choice

AITER_USE: tuple[Variable, ...] = (
    Variable("SGLANG_USE_AITER", SWITCH, False, "AITER's kernels for dense layers, norms and experts; on in profiles"),
    Variable("SGLANG_AITER_INTREE_GEMM_TUNE", SWITCH, True, "SGLang's own tuning tables for AITER's GEMMs"),
    Variable("SGLANG_AITER_INTREE_MHC_TILE_M16", SWITCH, True, "SGLang's own tile for AITER's hyper-connections"),
    Variable("SGLANG_USE_ROCM700A", SWITCH, False, "collectives of a ROCm 7.0 build; V4 fails with it on MI355X"),
    Variable("SGLANG_USE_AITER_AR", SWITCH, True, "AITER's all-reduce"),
    Variable("SGLANG_OPT_USE_AITER_SILU_MUL", SWITCH, False, "AITER's gated activation"),
    Variable("SGLANG_OPT_USE_AITER_BATCHED_GEMM", SWITCH, False, "AITER's batched GEMM for wo_a"),
    Variable("SGLANG_ROCM_USE_MULTI_STREAM", SWITCH, False, "shared experts on a second stream"),
    Variable("SGLANG_ROCM_SMALLM_ROUTER", SWITCH, True, "router GEMM for few rows"),
    Variable("SGLANG_ROCM_SMALLM_MOE", SWITCH, True, "expert GEMM for few rows"),
    Variable("SGLANG_ROCM_SMALLM_FP8_PROJ", SWITCH, True, "FP8 projections for few rows"),
    Variable("SGLANG_ROCM_SMALLM_FP8_BS", SWITCH, True, "block-scaled FP8 GEMM for few rows"),
    Variable("SGLANG_ROCM_OPT_DSPARK_FP8_LM_HEAD", SWITCH, False, "DSpark's head in FP8"),
    Variable("SGLANG_ROCM_MXFP8_AITER_PRESHUFFLE", SWITCH, False, "AITER's order of MXFP8 weights"),
    Variable("SGLANG_FORCE_FUSED_OP_BACKEND", TEXT, None, "one backend for every fused operation; torch to bisect"),
)

ATTENTION: tuple[Variable, ...] = (
    Variable(
        "SGLANG_HACK_FLASHMLA_BACKEND",
        choice("auto", "aiter_sparse", "tilelang", "triton", "torch", "comparison", "unified_kv_triton"),
        "auto",
        "sparse attention; auto is aiter_sparse on gfx950",
    ),
    Variable("SGLANG_OPT_USE_FUSED_QK_NORM_ROPE", SWITCH, True, "query and key norm with RoPE in one kernel"),
    Variable("SGLANG_OPT_FUSED_QK_NORM_ROPE_VERIFY", SWITCH, True, "the same at verify"),
    Variable("SGLANG_OPT_FUSE_WQA_WKV", SWITCH, True, "wq_a and wkv in one GEMM"),
    Variable("SGLANG_MLA_HCA_KV_SPLITS", INTEGER, 4, "splits of the compressed KV at decode"),
    Variable(
        "SGLANG_OPT_FLASHMLA_SPARSE_PREFILL", SWITCH, True, "CUDA's sparse prefill; SGLang switches it off on ROCm"
    ),
    Variable("SGLANG_OPT_HIP_OPUS_SPARSE_PREFILL", SWITCH, False, "OPUS sparse prefill"),
    Variable("SGLANG_DSV4_FLYDSL_DECODE", SWITCH, True, "FlyDSL decode over FP8 unified KV"),
    Variable("SGLANG_DSV4_FLYDSL_DECODE_SOURCE", TEXT, "auto", "where its kernel comes from"),
    Variable("SGLANG_DSV4_FLYDSL_DECODE_H128", SWITCH, False, "the same for 128 heads"),
    Variable("SGLANG_DSV4_FP8_DECODE_SPLIT_MODEL", SWITCH, True, "splits of FP8 decode by a cost model"),
    Variable("SGLANG_DSV4_FP8_DECODE_SPLIT_CTX", INTEGER, 200000, "context that the cost model assumes"),
    Variable("SGLANG_DSV4_FP8_HCA_PERSIST", SWITCH, True, "persistent kernel over C128"),
    Variable("SGLANG_DSV4_FP8_HCA_PERSIST_MIN_ROWS", INTEGER, 15, "from how many rows on"),
    Variable(
        "SGLANG_ROPE_BATCHED", SWITCH, False, "read by nothing in 0.5.23, which names it: V4 batches RoPE by itself"
    ),
    Variable("SGLANG_DSV4_Q8KV8_PREFILL", SWITCH, False, "prefill with FP8 queries and keys"),
    Variable("SGLANG_DSV4_Q8KV8_PREFILL_LOG", SWITCH, False, "log its choices"),
    Variable("SGLANG_DSV4_GROUPED_ASM", SWITCH, False, "verify rows of a request grouped in the assembly decode"),
    Variable("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", SWITCH, True, "index and compressor beside the projections"),
)

DENSE: tuple[Variable, ...] = (
    Variable("SGLANG_OPT_HIP_FLYDSL_MXFP8", SWITCH, False, "FlyDSL's MXFP8 GEMM"),
    Variable("SGLANG_HIP_SHARED_ACT_MXFP8", SWITCH, True, "shared experts' activation in MXFP8"),
    Variable("SGLANG_HIP_WO_A_MXFP8", SWITCH, True, "wo_a's output in MXFP8"),
    Variable("SGLANG_HIP_FFN_NORM_MXFP8", SWITCH, True, "the feed-forward norm's output in MXFP8"),
    Variable("SGLANG_OPT_FP8_WO_A_GEMM", SWITCH, True, "wo_a in FP8"),
    Variable("SGLANG_OPT_FP8_WO_A_FUSED_INVROPE", SWITCH, False, "inverse RoPE inside wo_a's quantisation"),
    Variable("SGLANG_DSV41_FUSED_WO_A", SWITCH, True, "SM100: RoPE inside wo_a"),
    Variable("SGLANG_OPT_BF16_FP32_GEMM_ALGO", TEXT, "cublas", "GEMM with bf16 inputs and a float32 result"),
    Variable("SGLANG_DSV4_DENSE_MXSCALE", SWITCH, False, "dense layers with ue8m0 scales"),
    Variable("SGLANG_DSV4_DENSE_MXSCALE_SHAPES", TEXT, "", "which of them"),
)

HYPER_CONNECTIONS: tuple[Variable, ...] = (
    Variable("SGLANG_HIP_MHC_BOUNDARY_WIDE_TILE", SWITCH, True, "wide tile of the fused boundary"),
    Variable("SGLANG_OPT_DEEPGEMM_HC_PRENORM", SWITCH, True, "DeepGEMM's prenorm GEMM"),
    Variable("SGLANG_OPT_USE_TILELANG_MHC_PRE", SWITCH, True, "TileLang reads the streams; off: AITER does"),
    Variable("SGLANG_OPT_USE_TILELANG_MHC_POST", SWITCH, True, "TileLang writes the streams; off: AITER does"),
    Variable("SGLANG_OPT_USE_FLASHINFER_MHC", SWITCH, False, "CUDA: flashinfer does both"),
    Variable("SGLANG_OPT_FUSE_MHC_POST_PRE", SWITCH, True, "writing and the next reading in one kernel"),
)
