"""Putting a drafter beside a loaded model."""

from __future__ import annotations

import torch

from ..causal_model import CausalModel
from ..hidden_tap import HiddenTap
from ..model import Model
from ..options import EngineOptions
from .config import DrafterConfig
from .drafter import Drafter
from .source import DSparkSource
from .stages import Stages, StagesV4
from .stages_v41 import StagesV41
from .weights import load_drafter


def build_source(
    options: EngineOptions,
    config: DrafterConfig,
    model: CausalModel,
    model_weights: dict[str, torch.Tensor],
    context_length: int,
) -> DSparkSource:
    """Load the drafter of `options.model_path` and let it read the model's hidden states. Raises WeightError."""
    weights, slots = load_drafter(options.model_path, config, options.device), model.pools.working_slots
    stages: Stages
    if isinstance(model, Model):
        stages = StagesV4(weights, config, slots, context_length, model.pools.kv_format)
    else:
        stages = StagesV41(weights, config, slots, context_length)
    tap = HiddenTap(config.target_layers)
    model.tap = tap
    drafter = Drafter(weights, config, stages, model_weights["embed.weight"], model_weights["head.weight"])
    return DSparkSource(drafter, tap)
