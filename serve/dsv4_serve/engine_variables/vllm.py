"""vLLM's variables of ROCm and of its sparse index."""

from __future__ import annotations

from dsv4_serve.engine_variables.variable import INTEGER, LIST, Variable, choice
from dsv4_serve.flags import Kind


def _parse_switch(text: str) -> bool:
    if text.lower() not in ("1", "true", "0", "false"):
        raise ValueError(text)
    return text.lower() in ("1", "true")


# vLLM takes anything else for off.
SWITCH = Kind("switch", "1|0 (also true|false)", _parse_switch)

VLLM: tuple[Variable, ...] = (
    Variable("VLLM_PLUGINS", LIST, None, "entry points that may be loaded; ours must be among them"),
    Variable("VLLM_SPARSE_INDEXER_MAX_LOGITS_MB", INTEGER, 512, "MiB of prefill logits of the index at a time"),
    Variable("VLLM_ROCM_USE_AITER", SWITCH, False, "AITER's kernels, which the MXFP4 index needs; on in profiles"),
    Variable("VLLM_ROCM_USE_AITER_CUSTOM_AR", SWITCH, True, "AITER's all-reduce"),
    Variable("VLLM_ROCM_USE_AITER_LINEAR", SWITCH, True, "dense layers by AITER"),
    Variable("VLLM_ROCM_USE_AITER_LINEAR_HIPBMM", SWITCH, False, "AITER's HIP GEMM for them"),
    Variable("VLLM_ROCM_USE_AITER_MOE", SWITCH, True, "experts by AITER"),
    Variable("VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4", SWITCH, None, "V4.1's experts with FP4 activations"),
    Variable("VLLM_ROCM_AITER_MOE_DISPATCH_POLICY", INTEGER, 0, "how AITER sorts rows to experts"),
    Variable("VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS", SWITCH, False, "shared experts inside the routed launch"),
    Variable("VLLM_ROCM_USE_AITER_RMSNORM", SWITCH, True, "norms by AITER"),
    Variable("VLLM_ROCM_USE_AITER_MLA", SWITCH, True, "MLA by AITER"),
    Variable("VLLM_ROCM_AITER_MLA_ASM_PADDING", choice("auto", "gluon", "asm"), "auto", "MLA decode of few heads"),
    Variable("VLLM_ROCM_USE_AITER_MHA", SWITCH, True, "other attention by AITER"),
    Variable("VLLM_ROCM_USE_AITER_TRITON_SPARSE_MLA", SWITCH, False, "sparse attention by AITER's Triton kernel"),
    Variable("VLLM_ROCM_USE_AITER_TRITON_ROPE", SWITCH, False, "RoPE by AITER's Triton kernel"),
    Variable("VLLM_ROCM_USE_AITER_TRITON_GEMM", SWITCH, True, "Triton GEMMs of AITER where they are tuned"),
    Variable("VLLM_ROCM_USE_AITER_FP8BMM", SWITCH, False, "batched GEMM in FP8"),
    Variable("VLLM_ROCM_USE_AITER_FP4BMM", SWITCH, False, "batched GEMM in FP4"),
    Variable("VLLM_ROCM_USE_AITER_UNIFIED_ATTENTION", SWITCH, False, "AITER's unified attention"),
)
