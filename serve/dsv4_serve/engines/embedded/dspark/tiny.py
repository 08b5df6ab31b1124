"""A random drafter beside a random tiny model: published structure, small sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..config import read_config
from ..families import family_of
from ..tiny import random_tensor
from ..weights import DRAFTER_FILE
from .config import parse_drafter_config
from .weights import drafter_shapes

STAGES = 3
TINY_DRAFTER: dict[str, Any] = {
    "n_mtp_layers": STAGES,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 2,
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 6,
    "dspark_num_experts_per_tok": 3,
}
"""As published are three stages that read the last three layers, blocks of 5 and 3 experts a token; the noise is the
padding token, which no text has."""


def write_tiny_drafter(directory: Path, seed: int = 0, overrides: dict[str, Any] | None = None) -> None:
    """Add a random drafter to the model in `directory`: its fields to config.json, and its tensors in a file of their
    own. The same model, seed and overrides write the same bytes. Raises ConfigError."""
    model, source = read_config(directory)
    config = family_of(model, source).parse(model, source)
    targets = list(range(max(config.num_hidden_layers - STAGES, 0), config.num_hidden_layers))
    raw = {**model, **TINY_DRAFTER, "dspark_target_layer_ids": targets, **(overrides or {})}
    drafter = parse_drafter_config(raw, config, source)
    # Another generator than the model's: equal seeds would give the drafter the model's own numbers.
    generator = torch.Generator().manual_seed(seed + (1 << 32))
    tensors = {
        name: random_tensor(name, shape, drafter.stage.n_routed_experts, generator)
        for name, shape in drafter_shapes(drafter).items()
    }
    save_file(tensors, directory / DRAFTER_FILE, metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
