"""The stages of a drafter of DeepSeek-V4.1: layers with a window only, each read by the weights of the block before."""

from __future__ import annotations

import torch

from ..hyper import STREAMS
from ..rope import RopeTable
from ..v41.layer import V41Layer, first_pre
from ..v41.projections import RowStage, V41Projections
from .attention import DraftAttention
from .block import DraftBlock
from .config import DrafterConfig


class StagesV41:
    """Weights are named as a model's (see `weights.model_names`)."""

    def __init__(
        self, weights: dict[str, torch.Tensor], config: DrafterConfig, slots: int, context_length: int
    ) -> None:
        stage, rows = config.stage, RowStage()
        # A block that begins at the last position of the context reaches beyond it.
        rope = RopeTable(stage.rope_theta, None, context_length + config.block)
        self.attentions: list[DraftAttention] = []
        self._layers: list[V41Layer[DraftBlock]] = []
        for number in range(config.stages):
            prefix = f"layers.{number}."
            projections = V41Projections(weights, prefix + "attn.", stage, rope, rows)
            self.attentions.append(DraftAttention(weights, prefix + "attn.", projections, slots, stage.head_dim))
            self._layers.append(V41Layer(weights, prefix, stage, self.attentions[-1]))

    def forward(self, x: torch.Tensor, block: DraftBlock) -> torch.Tensor:
        """See `Stages`."""
        streams, pre = x.unsqueeze(1).repeat(1, STREAMS, 1), first_pre(x.shape[0], STREAMS)
        for layer in self._layers:
            streams, pre = layer.forward(streams, pre, block)
        return torch.bmm(pre.unsqueeze(1), streams).squeeze(1)
