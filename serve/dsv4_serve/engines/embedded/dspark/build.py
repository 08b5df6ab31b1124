"""Putting a drafter beside a loaded model."""

from __future__ import annotations

import torch

from ..causal_model import CausalModel
from ..hidden_tap import HiddenTap
from ..model import Model
from ..options import EngineOptions, OptionError
from .config import DrafterConfig
from .drafter import Drafter
from .source import DSparkSource
from .stages import StagesV4
from .weights import load_drafter


def build_source(
    options: EngineOptions,
    config: DrafterConfig,
    model: CausalModel,
    model_weights: dict[str, torch.Tensor],
    context_length: int,
) -> DSparkSource:
    """Load the drafter of `options.model_path` and let it read the model's hidden states. Raises WeightError."""
    if not isinstance(model, Model):
        raise OptionError("speculative='dspark': accepted is off or ngram for this model")
    weights = load_drafter(options.model_path, config, options.device)
    stages = StagesV4(weights, config, model.pools.working_slots, context_length, model.pools.kv_format)
    model.tap = HiddenTap(config.target_layers)
    drafter = Drafter(weights, config, stages, model_weights["embed.weight"], model_weights["head.weight"])
    return DSparkSource(drafter, model.tap)
