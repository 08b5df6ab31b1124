"""One layer of V4.1: attention and experts inside hyper-connections whose input weights come from the block before."""

from __future__ import annotations

from typing import Generic

import torch
from torch.nn.functional import rms_norm

from ..config import CommonConfig
from ..hyper import HyperConnection
from ..model import Batch, Mixer
from .moe import RoutedExperts


class V41Layer(Generic[Batch]):
    """Weights under `prefix`; any attention."""

    def __init__(
        self, weights: dict[str, torch.Tensor], prefix: str, config: CommonConfig, attention: Mixer[Batch]
    ) -> None:
        self._attention, self._rms = attention, config.rms_norm_eps
        self._experts = RoutedExperts(weights, prefix + "ffn.", config)
        self._norms = [weights[f"{prefix}{part}_norm.weight"] for part in ("attn", "ffn")]
        self._attn_hc, self._ffn_hc = (
            HyperConnection.of(weights, f"{prefix}hc_{part}_", config) for part in ("attn", "ffn")
        )

    def forward(self, streams: torch.Tensor, pre: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Residual streams [T, 4, hidden] and the weights [T, 4] by which they are read, in and out."""
        x, mixed, post, pre = self._attn_hc.split_delayed(streams, pre)
        x = rms_norm(x, x.shape[-1:], self._norms[0], self._rms)
        streams = HyperConnection.join(mixed, post, self._attention.forward(x, batch))
        x, mixed, post, pre = self._ffn_hc.split_delayed(streams, pre)
        x = rms_norm(x, x.shape[-1:], self._norms[1], self._rms)
        return HyperConnection.join(mixed, post, self._experts.forward(x)), pre


def first_pre(rows: int, streams: int) -> torch.Tensor:
    """The first block reads stream 0: float32 [rows, streams]."""
    pre = torch.zeros(rows, streams)
    pre[:, 0] = 1
    return pre
