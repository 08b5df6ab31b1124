"""Engram: n-grams look rows up in a table, and a gate decides how much of them each residual stream takes."""

from __future__ import annotations

import torch

from ..config import CommonConfig
from ..hyper import STREAMS
from ..linear import Projection

LEAST = 1e-6
"""Of a match's magnitude, before its root."""


class Engram:
    """One layer's table and gate, under `prefix`."""

    def __init__(self, weights: dict[str, torch.Tensor], prefix: str, config: CommonConfig) -> None:
        self._hidden, self._eps = config.hidden_size, config.rms_norm_eps
        self._table = weights[prefix + "embed.weight"]
        self._wkv = Projection(weights[prefix + "wkv.weight"])
        self._weight = weights[prefix + "q_weight"] * weights[prefix + "k_weight"]

    def add(self, streams: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Streams float32 [T, 4, hidden] with what rows int64 [T, columns] of the table give each."""
        read = self._wkv(self._table[rows].flatten(1)).view(-1, STREAMS + 1, self._hidden)
        key, value = read[:, :STREAMS], read[:, STREAMS:]
        scale = self._inverse_rms(streams) * self._inverse_rms(key) * self._hidden**-0.5
        match = (streams * self._weight * key).sum(-1, keepdim=True) * scale
        gate = torch.copysign(match.abs().clamp(min=LEAST).sqrt(), match).sigmoid()
        return torch.addcmul(streams, gate, value)

    def _inverse_rms(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean(-1, keepdim=True).add_(self._eps).rsqrt_()
