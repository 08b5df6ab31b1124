"""What a CPU cannot run of SGLang's server with the HIP index path, and what answers for it. This list is complete.

Everything else in the server's processes is SGLang as published: HTTP, tokenizer and parsers, scheduler, radix cache,
pools and their sizes, the HIP attention backend with its metadata, the FP4 index adapter, model and weight loader.
AITER is `simulated_aiter.py`, the device `cuda.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsv4_serve.engines.sglang.hooks import Function, Hook

SLOW = "a Triton kernel of many small programs, which take seconds a layer in the interpreter"
OPS = "sglang.kernels.ops.attention.dsv4."


def _answer(make: Callable[[], Any]) -> Callable[[Function], Function]:
    """A hook that puts `make()` in the place of what a loader of compiled code would return."""

    def wrap(original: Function) -> Function:
        answer = make()
        return lambda *args, **options: answer(*args, **options)

    return wrap


def _compressor(name: str) -> Callable[[], Any]:
    def make() -> Any:
        from simulated_server import compressor

        return getattr(compressor, name)

    return make


def _attention(name: str, called: bool = True) -> Callable[[], Any]:
    def make() -> Any:
        from simulated_server import attention

        kernel = getattr(attention, name)
        return kernel if called else lambda *args, **options: kernel

    return make


def _experts(name: str) -> Callable[[], Any]:
    def make() -> Any:
        from simulated_server import experts

        return getattr(experts, name)

    return make


def _native(original: Function) -> Function:
    """SGLang's own torch code of the same operation."""

    def forward(self: Any, *args: Any, **options: Any) -> Any:
        return self.forward_native(*args, **options)

    return forward


HOOKS: tuple[Hook, ...] = (
    Hook(OPS + "compress", "_jit_compress_plan_module", _answer(_compressor("PlanKernels")), "compiled by hipcc"),
    Hook(OPS + "compress", "_jit_compress_module", _answer(_compressor("PoolingKernels")), "compiled by hipcc"),
    Hook(OPS + "compress", "_jit_compress_norm_rope_module", _answer(_compressor("StoreKernel")), "compiled by hipcc"),
    Hook(OPS + "norm_rope", "_jit_main_q_norm_rope_module", _answer(_attention("QueryNormRope")), "compiled by hipcc"),
    Hook(
        OPS + "norm_rope",
        "_jit_main_k_norm_rope_flashmla_module",
        _answer(_attention("KeyNormRopeStore")),
        "compiled by hipcc",
    ),
    Hook(OPS + "rope", "apply_rotary_emb_triton", _answer(_attention("turn_inplace")), SLOW),
    Hook(
        "sglang.kernels.ops.activation.silu_and_mul_clamp_hip",
        "silu_and_mul_clamp_triton",
        _answer(_experts("gated")),
        SLOW,
    ),
    Hook(OPS + "topk", "_jit_topk_v2_module", _answer(_attention("TopK")), "compiled by hipcc"),
    Hook(
        "sglang.srt.layers.attention.hip_flash_mla",
        "flash_mla_with_kvcache_torch",
        _answer(_attention("sparse_attention")),
        "SGLang's torch attention needs its flashmla_tests, which the wheel leaves out",
    ),
    Hook(
        "sglang.srt.layers.quantization.unquant",
        "UnquantizedFusedMoEMethod.apply",
        _answer(_experts("apply_experts")),
        "AITER's CK kernels, or a Triton kernel by blocks of a GPU",
    ),
)
