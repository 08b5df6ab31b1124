"""What every attention layer does to a row before and after it attends: queries and KV row, and the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import rms_norm

from .linear import Projection
from .rope import RopeTable


@dataclass(frozen=True, slots=True)
class HeadGeometry:
    """Query heads of `dim` in `groups` of the output projection; `norm` says whether each head is normalised."""

    heads: int
    dim: int
    groups: int
    o_lora_rank: int
    rms_norm_eps: float
    norm: bool = True


@dataclass(frozen=True, slots=True)
class Projected:
    """Of T rows: scaled queries [T, heads, dim], KV rows [T, dim] as the cache stores them, the queries' latent
    [T, q_lora_rank], and what the further input projections gave. All float32."""

    queries: torch.Tensor
    rows: torch.Tensor
    latent: torch.Tensor
    further: Sequence[torch.Tensor]


class HeadProjections:
    """The weights under `prefix`. `stored` gives KV rows [T, dim] as the cache will give them back; `further`
    [out, hidden] each read the same input, in the same product."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        prefix: str,
        geometry: HeadGeometry,
        rope: RopeTable,
        stored: Callable[[torch.Tensor], torch.Tensor],
        further: Sequence[torch.Tensor] = (),
    ) -> None:
        self._geometry, self._rope, self._stored = geometry, rope, stored
        self._q_norm, self._kv_norm = weights[prefix + "q_norm.weight"], weights[prefix + "kv_norm.weight"]
        self._wq_b = Projection(weights[prefix + "wq_b.weight"])
        wo_a = weights[prefix + "wo_a.weight"].view(geometry.groups, geometry.o_lora_rank, -1)
        self._wo_a = wo_a.transpose(1, 2).contiguous()
        self._wo_b = Projection(weights[prefix + "wo_b.weight"])
        parts = [weights[prefix + "wq_a.weight"], weights[prefix + "wkv.weight"], *further]
        self._split = [part.shape[0] for part in parts]
        self._w_in = Projection(torch.cat(parts))

    def read(self, x: torch.Tensor, positions: torch.Tensor) -> Projected:
        """Normalised block input [T, hidden] (T a multiple of 8) at positions int64 [T]."""
        geometry = self._geometry
        latent, rows, *further = torch.split(self._w_in(x), self._split, 1)
        latent = rms_norm(latent, latent.shape[-1:], self._q_norm, geometry.rms_norm_eps)
        q = self._wq_b(latent).view(-1, geometry.heads, geometry.dim)
        if geometry.norm:
            q = rms_norm(q, (geometry.dim,), eps=geometry.rms_norm_eps)
        q = self._rope.rotate(q, positions).mul_(geometry.dim**-0.5)
        return Projected(q, self.rows(rows, positions), latent, further)

    def rows(self, projected: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """KV rows [T, dim] of what `wkv` made of the input."""
        rows = rms_norm(projected, (self._geometry.dim,), self._kv_norm, self._geometry.rms_norm_eps)
        return self._stored(self._rope.rotate(rows, positions))

    def write(self, out: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Attended heads [T, heads, dim] to the output [T, hidden]; turns back the rotation of the keys."""
        out = self._rope.rotate(out, positions, inverse=True)
        grouped = out.view(out.shape[0], self._geometry.groups, -1).transpose(0, 1)
        return self._wo_b(torch.bmm(grouped, self._wo_a).transpose(0, 1).reshape(out.shape[0], -1))
