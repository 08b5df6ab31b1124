"""Putting a drafter beside a loaded model."""

from __future__ import annotations

import torch

from ..hidden_tap import HiddenTap
from ..model import Model
from ..options import EngineOptions
from .config import DrafterConfig
from .drafter import Drafter
from .source import DSparkSource
from .stages import StagesV4
from .weights import load_drafter


def build_source(
    options: EngineOptions,
    config: DrafterConfig,
    model: Model,
    model_weights: dict[str, torch.Tensor],
    context_length: int,
) -> DSparkSource:
    """Load the drafter of `options.model_path` and let it read the model's hidden states. Raises WeightError."""
    weights = load_drafter(options.model_path, config, options.device)
    stages = StagesV4(weights, config, model.pools.working_slots, context_length, options.kv_dtype)
    model.tap = HiddenTap(config.target_layers)
    drafter = Drafter(weights, config, stages, model_weights["embed.weight"], model_weights["head.weight"])
    return DSparkSource(drafter, model.tap)
