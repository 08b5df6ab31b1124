"""V4.1's mixture of experts: every layer routes by the product's router, whose weights do not depend on the batch."""

from __future__ import annotations

import torch

from dsv4_kernels import ops

from ..config import CommonConfig
from ..moe import Experts


class RoutedExperts:
    """One layer's router and experts. Reads float32 [T, hidden], T a multiple of 8."""

    def __init__(self, weights: dict[str, torch.Tensor], prefix: str, config: CommonConfig) -> None:
        self._top_k, self._scaling = config.num_experts_per_tok, config.routed_scaling_factor
        self._gate, self._bias = weights[prefix + "gate.weight"].bfloat16(), weights[prefix + "gate.bias"]
        self._experts = Experts(weights, prefix, config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Routed and shared output [T, hidden]. The router reads x in bfloat16, as published, the experts as it is."""
        partials = ops.router_partials(x.bfloat16(), self._gate)
        weights, chosen = ops.router_gate(partials, self._bias, self._top_k, routed_scaling=self._scaling)
        return self._experts.forward(x, chosen.long(), weights)
