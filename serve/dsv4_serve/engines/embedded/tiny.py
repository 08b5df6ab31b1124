"""The tiny models: production's geometry for everything that a cache stores, small in everything else.

Head dimensions, index heads, window, ratios, page size and row formats are the production model's, so bytes per token
and layer are too. Hidden size, depth, query heads and experts are small.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .families import family_of
from .tiny_config import TINY_CONFIG
from .tokenizer import write_tokenizer
from .v41.tiny_config import TINY_V41_CONFIG

TINY_CONFIGS: dict[str, dict[str, Any]] = {"v4": TINY_CONFIG, "v41": TINY_V41_CONFIG}
"""By the name of the family that `dsv4 tiny-model` takes."""


def write_tiny_model(
    directory: Path, seed: int = 0, overrides: dict[str, Any] | None = None, family: str = "v4"
) -> None:
    """Write config.json, model.safetensors and tokenizer.json of a random tiny model.

    The same seed, overrides and family write the same bytes. `overrides` replaces fields of the configuration (for
    tests). Raises KeyError for another family than those of TINY_CONFIGS.
    """
    raw = {**TINY_CONFIGS[family], **(overrides or {})}
    kind = family_of(raw, "TINY_CONFIGS")
    config = kind.parse(raw, "TINY_CONFIGS")
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: random_tensor(name, shape, config.n_routed_experts, generator)
        for name, shape in kind.tensor_shapes(config).items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    write_tokenizer(directory)


def random_tensor(name: str, shape: tuple[int, ...], experts: int, generator: torch.Generator) -> torch.Tensor:
    """Values that exercise every path: nothing is left at a neutral zero or one."""

    def normal(std: float) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * std

    if name.endswith("tid2eid"):
        order = torch.stack([torch.randperm(experts, generator=generator) for _ in range(shape[0])])
        return order[:, : shape[1]].contiguous()
    if name.endswith("norm.weight"):
        return 1 + normal(0.1)
    if name.endswith(("_scale", "_base", "gate.bias", "attn_sink", ".ape")):
        return normal(0.5)
    if name.endswith("_fn"):
        return normal(1 / math.sqrt(shape[-1]))
    gain = 0.4 if name == "head.weight" else 1.0
    # Unit-gain projections keep activations and index scores of order one at any width, logits a little below.
    return normal(gain / math.sqrt(shape[-1])).to(torch.bfloat16)
