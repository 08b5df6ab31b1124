"""The embedded engine's drafter of a committed tiny model, without the rest of the engine."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from dsv4_serve.engines.embedded.config import CommonConfig, load_model_config, read_config
from dsv4_serve.engines.embedded.dspark.config import load_drafter_config
from dsv4_serve.engines.embedded.dspark.drafter import Drafter
from dsv4_serve.engines.embedded.dspark.stages import Stages, StagesV4
from dsv4_serve.engines.embedded.dspark.stages_v41 import StagesV41
from dsv4_serve.engines.embedded.dspark.weights import load_drafter
from dsv4_serve.engines.embedded.v41.config import parse_v41_config

CONTEXT = 1024


def load(directory: Path, slots: int) -> Drafter:
    """With empty rings for `slots` working slots."""
    raw, source = read_config(directory)
    v41 = raw["model_type"] == "deepseek_v41"
    model: CommonConfig = parse_v41_config(raw, source) if v41 else load_model_config(directory)
    config = load_drafter_config(directory, model)
    weights, shared = load_drafter(directory, config), load_file(directory / "model.safetensors")
    stages: Stages
    if v41:
        stages = StagesV41(weights, config, slots, CONTEXT)
    else:
        stages = StagesV4(weights, config, slots, CONTEXT, "v4")
    return Drafter(weights, config, stages, shared["embed.weight"].float(), shared["head.weight"].float())
