"""Products that stay in float32: what a compressor's softmax weighs and a router chooses by.

SGLang 0.5.23 with SGLANG_USE_AITER sends V4's `wkv_gate`, and the router's product of V4 and of more than 64 rows of
V4.1, through AITER's tuned product for bfloat16. So scores and logits lose 16 bits, and V4.1's router chooses by other
logits in prefill than in decode. Here they go through `linear_bf16_fp32`, which V4.1's compressors call always, and
that through our operation where `float32_products` says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dsv4_serve.engines.hooks import Function, Hook
from dsv4_serve.engines.sglang import float32_products

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

PRODUCT = "sglang.kernels.ops.gemm.bf16_fp32"
COMPRESSOR = "sglang.srt.layers.attention.dsv4.compressor"
ROUTER = "sglang.srt.models.deepseek_v2"
MODEL = "sglang.srt.models.deepseek_v4"


def _in_forward(forward: Function) -> Function:
    def running(model: Any, input_ids: Any, positions: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        from dsv4_kernels import counters

        mode = forward_batch.forward_mode
        with counters.counted_as("decode" if mode.is_decode() else "verify" if mode.is_target_verify() else "prefill"):
            return forward(model, input_ids, positions, forward_batch, *args, **kwargs)

    return running


def _multiply(product: Function) -> Function:
    """`linear_bf16_fp32(x, y)`: float32 [T, N] of `x` [T, K] and `y` [N, K]."""

    def multiplying(x: Tensor, y: Tensor, **options: Any) -> Any:
        import torch

        chosen = float32_products.current()
        # A graph that torch traces takes nothing of ours in, nor our counts.
        if (
            chosen is None
            or torch.compiler.is_compiling()
            or x.dtype != torch.bfloat16
            or y.dtype != torch.bfloat16
            or x.ndim != 2
        ):
            return product(x, y, **options)
        from dsv4_kernels import counters, ops

        if chosen.ours(len(x)):
            return ops.linear_float32(x, y)
        counters.count_launch(float32_products.OP, counters.current_phase(), "engine")
        return product(x, y, **options)

    return multiplying


def _weigh(compute: Function) -> Function:
    """`Compressor._compute_wkv_gate(x)` of V4."""

    def computing(compressor: Any, x: Tensor) -> Any:
        from sglang.srt.layers.attention.dsv4 import compressor as module

        weight = getattr(compressor.wkv_gate, "weight", None)
        if not module._use_aiter or not _steered("wkv_gate", weight):
            return compute(compressor, x)
        return module.linear_bf16_fp32(x, weight)

    return computing


def _route(forward: Function) -> Function:
    """`MoEGate.forward(hidden_states)`: the logits of V4's and V4.1's routers, float32 as their gates take them."""

    def routing(gate: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        from sglang.kernels.ops.gemm import bf16_fp32
        from sglang.srt.models import deepseek_v2
        from sglang.srt.runtime_context import get_exec

        published = not deepseek_v2._use_aiter or not gate.is_deepseek_v4
        if published or get_exec().deterministic.enable_deterministic_inference:
            return forward(gate, hidden_states, *args, **kwargs)
        if not _steered("router_logits", gate.weight):
            return forward(gate, hidden_states, *args, **kwargs)
        return bf16_fp32.linear_bf16_fp32(hidden_states, gate.weight)

    return routing


def _steered(what: str, weight: Tensor | None) -> bool:
    """Whether a product is kept from AITER's; which is told and counted once, because it is so for every call."""
    import torch

    from dsv4_kernels import counters, registry

    chosen = float32_products.current()
    if chosen is None or weight is None or weight.dtype != torch.bfloat16:
        return False
    if torch.compiler.is_compiling():
        return not chosen.problem
    reason = f"not by AITER: {registry.absence('aiter', float32_products.OP)}"
    if (what, reason) not in counters.snapshot().fallbacks:
        log.warning("%s goes through linear_bf16_fp32, %s", what, reason)
        counters.count_fallback(what, reason)
    return True


HOOKS: tuple[Hook, ...] = (
    Hook(MODEL, "DeepseekV4ForCausalLM.forward", _in_forward, "the phase of products"),
    Hook(PRODUCT, "linear_bf16_fp32", _multiply, "float32 products, few rows by ours", needed=True),
    Hook(COMPRESSOR, "Compressor._compute_wkv_gate", _weigh, "compressors' products stay in float32", needed=True),
    Hook(ROUTER, "MoEGate.forward", _route, "router logits stay in float32", needed=True),
)
