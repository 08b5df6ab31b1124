"""What a CPU cannot run of SGLang's server with the HIP index path, and what answers for it. This list is complete.

Everything else in the server's processes is SGLang as published: HTTP, tokenizer and parsers, scheduler, radix cache,
pools and their sizes, the HIP attention backend with its metadata, the FP4 index adapter, model and weight loader.
AITER's index path is `simulated_aiter.py`, the device is `cuda.py`, and `running.SWITCHES` puts dense layers onto
SGLang's own torch code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from dsv4_serve.engines.hooks import Function, Hook

HIPCC = "compiled by hipcc for the device at run time"
SLOW = "a Triton kernel of many small programs, which take seconds a layer in the interpreter"
OPS = "sglang.kernels.ops.attention.dsv4"
ACTIVATION = "sglang.kernels.ops.activation.silu_and_mul_clamp_hip"
ATTENTION = "sglang.srt.layers.attention.hip_flash_mla"
EXPERTS = "sglang.srt.layers.quantization.unquant"


def _from(place: str, name: str) -> Callable[[Function], Function]:
    """A hook that puts `simulated_server.PLACE:NAME` in its target's place: a function, or the class of a kernel whose
    loader the target is."""

    def wrap(original: Function) -> Function:
        answer = getattr(importlib.import_module(f"simulated_server.{place}"), name)

        def stand_in(*args: Any, **options: Any) -> Any:
            return answer(*args, **options)

        return stand_in

    return wrap


HOOKS: tuple[Hook, ...] = (
    Hook(f"{OPS}.compress", "_jit_compress_plan_module", _from("compressor", "PlanKernels"), HIPCC),
    Hook(f"{OPS}.compress", "_jit_compress_module", _from("compressor", "PoolingKernels"), HIPCC),
    Hook(f"{OPS}.compress", "_jit_compress_norm_rope_module", _from("compressor", "StoreKernel"), HIPCC),
    Hook(f"{OPS}.norm_rope", "_jit_main_q_norm_rope_module", _from("attention", "QueryNormRope"), HIPCC),
    Hook(f"{OPS}.norm_rope", "_jit_main_k_norm_rope_flashmla_module", _from("attention", "KeyNormRopeStore"), HIPCC),
    Hook(f"{OPS}.topk", "_jit_topk_v2_module", _from("attention", "TopK"), HIPCC),
    Hook(f"{OPS}.rope", "apply_rotary_emb_triton", _from("attention", "turn_inplace"), SLOW),
    Hook(ACTIVATION, "silu_and_mul_clamp_triton", _from("experts", "gated"), SLOW),
    Hook(
        ATTENTION,
        "flash_mla_with_kvcache_torch",
        _from("attention", "sparse_attention"),
        "SGLang's torch attention needs its flashmla_tests, which the wheel leaves out",
    ),
    Hook(
        EXPERTS,
        "UnquantizedFusedMoEMethod.apply",
        _from("experts", "apply_experts"),
        "AITER's CK kernels, or a Triton kernel by blocks of a GPU",
    ),
)
ABSENT = {
    # AITER's kernels that read and write the residual streams.
    "aiter.ops.mhc": ("hyper_connections", ("mhc_pre", "mhc_post")),
    # SGLang's compiled copy of rows between the device's pools and the host's.
    "sgl_kernel.kvcacheio": ("transfers", ("transfer_kv_direct",)),
}
"""Functions of packages that are absent here, by module: the file and names of what stands in for them."""
