"""SGLang's fused mixture of experts, which is a Triton kernel with block tables of a GPU, in torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def gated(gate_up: Tensor, swiglu_limit: float, fp8_grid: bool = False, emit_fp8: bool = False) -> Tensor:
    """`silu_and_mul_clamp_triton` of the shared experts: silu(min(g, limit)) * clamp(u) of [T, 2n]."""
    assert not fp8_grid
    assert not emit_fp8
    return _gate(gate_up, swiglu_limit).to(gate_up.dtype)


def _gate(gate_up: Tensor, limit: float | None) -> Tensor:
    gate, up = gate_up.float().chunk(2, -1)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return functional.silu(gate) * up


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
        inner = _gate(functional.linear(x[token], layer.w13_weight[expert]), config.swiglu_limit).to(x.dtype)
        out.index_add_(
            0, token, functional.linear(inner, layer.w2_weight[expert]).float() * weights[token, place, None]
        )
    if config.routed_scaling_factor is not None and not layer.should_fuse_routed_scaling_factor_in_topk:
        out *= config.routed_scaling_factor
    return StandardCombineInput(hidden_states=out.to(x.dtype))
