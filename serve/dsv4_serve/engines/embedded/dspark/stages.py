"""The stages of a drafter of DeepSeek-V4: layers with a window only, inside hyper-connections."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import torch

from dsv4_kernels.kv_pages import KVFormat, round_trip

from ..attention import head_geometry
from ..config import ModelConfig
from ..hyper import STREAMS, HyperHead
from ..model import Layer
from ..projections import HeadProjections
from ..rope import RopeTable
from .attention import DraftAttention
from .block import DraftBlock
from .config import DrafterConfig


class Stages(Protocol):
    """What differs between the generations of a drafter: how its stages compute. `attentions` are theirs, in order."""

    attentions: list[DraftAttention]

    def forward(self, x: torch.Tensor, block: DraftBlock) -> torch.Tensor:
        """Embedded rows [T, hidden] of a block to what the final norm reads, [T, hidden]."""
        ...


class StagesV4:
    """Weights are named as a model's (see `weights.model_names`)."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        config: DrafterConfig,
        slots: int,
        context_length: int,
        kv_format: KVFormat,
    ) -> None:
        stage = config.stage
        assert isinstance(stage, ModelConfig)
        # A block that begins at the last position of the context reaches beyond it.
        rope = RopeTable(stage.rope_theta, None, context_length + config.block)
        heads, stored = head_geometry(stage), partial(round_trip, kv_format)
        self.attentions: list[DraftAttention] = []
        self._layers: list[Layer[DraftBlock]] = []
        for number in range(config.stages):
            prefix = f"layers.{number}.attn."
            projections = HeadProjections(weights, prefix, heads, rope, stored)
            self.attentions.append(DraftAttention(weights, prefix, projections, slots, stage.head_dim))
            self._layers.append(Layer(weights, number, stage, self.attentions[-1]))
        fn, base, scale = (weights[f"hc_head_{part}"] for part in ("fn", "base", "scale"))
        self._collapse = HyperHead(fn, base, scale, stage.hc_eps, stage.rms_norm_eps)

    def forward(self, x: torch.Tensor, block: DraftBlock) -> torch.Tensor:
        """See `Stages`."""
        streams = x.unsqueeze(1).repeat(1, STREAMS, 1)
        for layer in self._layers:
            streams = layer.forward(streams, block)
        return self._collapse.collapse(streams)
