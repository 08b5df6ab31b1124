"""Mixture of experts: sqrt-softplus or hash routing, clamped SwiGLU, one shared expert."""

from __future__ import annotations

import torch
from torch.nn.functional import silu, softplus

from .config import CommonConfig, ModelConfig
from .linear import Projection, pad_rows

DENSE_EXPERTS = 8
"""Up to this many experts, all of them computed in two products beat a loop over the chosen ones on a CPU."""


class MoE:
    """One layer's router and experts. Reads float32 [T, hidden], T a multiple of 8."""

    def __init__(self, weights: dict[str, torch.Tensor], prefix: str, config: ModelConfig) -> None:
        self._top_k, self._scaling = config.num_experts_per_tok, config.routed_scaling_factor
        self._gate = Projection(weights[prefix + "gate.weight"])
        self._table = weights.get(prefix + "gate.tid2eid")
        self._bias = weights.get(prefix + "gate.bias")
        self._experts = Experts(weights, prefix, config)

    def forward(self, x: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Routed and shared output [T, hidden]; `token_ids` int64 [T] feed hash routing."""
        return self._experts.forward(x, *self._route(x, token_ids))

    def _route(self, x: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Expert ids [T, k] and their weights [T, k]; the lowest expert wins a tie."""
        scores = softplus(self._gate(x)).sqrt()
        if self._table is not None:
            chosen = self._table[token_ids]
        else:
            biased = scores if self._bias is None else scores + self._bias
            chosen = torch.sort(biased, stable=True, dim=-1, descending=True).indices[:, : self._top_k]
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights.mul_(self._scaling)


class Experts:
    """One layer's routed experts, and the shared one that every token goes through."""

    def __init__(self, weights: dict[str, torch.Tensor], prefix: str, config: CommonConfig) -> None:
        self._experts, self._limit = config.n_routed_experts, config.swiglu_limit
        names = [f"experts.{e}" for e in range(self._experts)] + ["shared_experts"]
        self._dense = self._experts <= DENSE_EXPERTS
        part = {w: [weights[f"{prefix}{name}.{w}.weight"] for name in names] for w in ("w1", "w2", "w3")}
        if self._dense:
            # The shared expert is one more expert whose weight is always 1.
            self._up = Projection(torch.cat(part["w1"] + part["w3"]))
            self._down = Projection(torch.cat(part["w2"], 1))
        else:
            self._ups = [Projection(torch.cat([gate, up])) for gate, up in zip(part["w1"], part["w3"], strict=True)]
            self._downs = [Projection(down) for down in part["w2"]]

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Output [T, hidden]: of experts `chosen` int64 [T, k] by `weights` float32 [T, k], and of the shared one."""
        return self._forward_dense(x, chosen, weights) if self._dense else self._forward_each(x, chosen, weights)

    def _activate(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return silu(gate.clamp(max=self._limit)) * up.clamp(-self._limit, self._limit)

    def _forward_dense(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        share = torch.zeros(rows, self._experts + 1)
        share.scatter_(1, chosen, weights)
        share[:, -1] = 1
        gate, up = self._up(x).chunk(2, 1)
        inner = self._activate(gate, up).view(rows, self._experts + 1, -1)
        return self._down(inner.mul_(share.unsqueeze(-1)).view(rows, -1))

    def _forward_each(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        out = self._expert(self._experts, x)
        for expert in sorted(set(chosen.flatten().tolist())):
            row, place = (chosen == expert).nonzero(as_tuple=True)
            part = self._expert(expert, pad_rows(x[row]))[: row.numel()]
            out.index_add_(0, row, part * weights[row, place, None])
        return out

    def _expert(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._ups[expert](x).chunk(2, 1)
        return self._downs[expert](self._activate(gate, up))
