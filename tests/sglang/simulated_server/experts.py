"""SGLang's fused mixture of experts, which is a Triton kernel with block tables of a GPU, in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def apply_experts(self: Any, layer: Any, dispatch_output: Any) -> Any:
    """`UnquantizedFusedMoEMethod.apply`: each expert's gated product over the tokens that chose it."""
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput

    x: Tensor = dispatch_output.hidden_states
    weights, chosen, *_ = dispatch_output.topk_output
    config = layer.moe_runner_config
    out = torch.zeros(x.shape, dtype=torch.float32)
    for expert in chosen.unique().tolist():
        if expert < 0:
            continue
        token, place = torch.nonzero(chosen == expert, as_tuple=True)
        gate, up = functional.linear(x[token], layer.w13_weight[expert]).float().chunk(2, -1)
        if config.swiglu_limit is not None:
            gate, up = gate.clamp(max=config.swiglu_limit), up.clamp(-config.swiglu_limit, config.swiglu_limit)
        inner = (functional.silu(gate) * up).to(x.dtype)
        out.index_add_(
            0, token, functional.linear(inner, layer.w2_weight[expert]).float() * weights[token, place, None]
        )
    if config.routed_scaling_factor is not None and not layer.should_fuse_routed_scaling_factor_in_topk:
        out *= config.routed_scaling_factor
    return StandardCombineInput(hidden_states=out.to(x.dtype))
