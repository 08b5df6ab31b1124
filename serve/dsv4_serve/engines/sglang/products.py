"""Products that stay in float32: what a compressor's softmax weighs must not pass a product that rounds to bfloat16.

SGLang 0.5.23 with SGLANG_USE_AITER sends V4's `wkv_gate` through AITER's tuned product, which gives bfloat16, and
widens that. So the scores lose 16 bits before their softmax, and the entries differ from those of `linear_bf16_fp32`,
which the engine takes elsewhere and V4.1's compressors always.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dsv4_serve.engines.hooks import Function, Hook

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

COMPRESSOR = "sglang.srt.layers.attention.dsv4.compressor"
REASON = "AITER's product rounds to bfloat16"


def _keep_float32(compute: Function) -> Function:
    def computing(compressor: Any, x: Tensor) -> Any:
        import torch
        from sglang.srt.layers.attention.dsv4 import compressor as module

        weight = getattr(compressor.wkv_gate, "weight", None)
        if not module._use_aiter or weight is None or weight.dtype != torch.bfloat16:
            return compute(compressor, x)
        _count_once()
        return module.linear_bf16_fp32(x, weight)

    return computing


def _count_once() -> None:
    """The route is chosen once, for every call."""
    from dsv4_kernels import counters

    if ("wkv_gate", REASON) not in counters.snapshot().fallbacks:
        log.warning("compressors' projections go through linear_bf16_fp32: %s", REASON)
        counters.count_fallback("wkv_gate", REASON)


HOOKS: tuple[Hook, ...] = (
    Hook(
        COMPRESSOR, "Compressor._compute_wkv_gate", _keep_float32, "compressors' products stay in float32", needed=True
    ),
)
