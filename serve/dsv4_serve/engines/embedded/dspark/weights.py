"""The drafter's tensors: published names (`mtp.<stage>.*`), shapes, and loading.

A stage has the tensors of a layer of the model. The first one has the projection of the model's hidden states besides,
the last one what stands between the stages and the model's own head, and the Markov head.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..config import ModelConfig
from ..v41.config import V41Config
from ..v41.weights import tensor_shapes as v41_tensor_shapes
from ..weights import DRAFT_PREFIX, Shape, load_tensors, tensor_shapes
from .config import DrafterConfig

MAIN_PROJECTION, MAIN_NORM = "main_proj.weight", "main_norm.weight"
MARKOV_BEFORE, MARKOV_AFTER = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
_MARKOV_V41 = {"markov_head.embed.weight": MARKOV_BEFORE, "markov_head.head.weight": MARKOV_AFTER}
"""How V4.1's checkpoint calls them."""

UNUSED = ("confidence_head.proj.weight", "gate.bias_vl")
"""Endings of published tensors without a use here: drafts are whole blocks, and of text."""

_SHARED = ("embed.weight", "head.weight")
_LAYER_PREFIX, _LAYER_PARTS = "layers.", ("attn", "ffn", "hc_attn", "hc_ffn")


def drafter_shapes(config: DrafterConfig) -> dict[str, Shape]:
    """Published name and shape of every tensor that a drafter reads, in a stable order."""
    stage, first, last = config.stage, f"{DRAFT_PREFIX}0.", f"{DRAFT_PREFIX}{config.stages - 1}."
    shapes: dict[str, Shape] = {
        first + MAIN_PROJECTION: (stage.hidden_size, stage.hidden_size * len(config.target_layers)),
        first + MAIN_NORM: (stage.hidden_size,),
    }
    for name, shape in _model_shapes(stage).items():
        if name.startswith(_LAYER_PREFIX):
            shapes[DRAFT_PREFIX + name.removeprefix(_LAYER_PREFIX)] = shape
        elif name not in _SHARED:
            shapes[last + name] = shape
    markov = _MARKOV_V41 if isinstance(stage, V41Config) else (MARKOV_BEFORE, MARKOV_AFTER)
    return shapes | {last + name: (stage.vocab_size, config.markov_rank) for name in markov}


def _model_shapes(stage: ModelConfig | V41Config) -> dict[str, Shape]:
    return v41_tensor_shapes(stage) if isinstance(stage, V41Config) else tensor_shapes(stage)


def load_drafter(directory: Path, config: DrafterConfig, device: str = "cpu") -> dict[str, torch.Tensor]:
    """All tensors of `drafter_shapes`, float32 on `device`, as `model_names` calls them.

    Raises WeightError as `load_weights` does.
    """

    def belongs(name: str) -> bool:
        return name.startswith(DRAFT_PREFIX) and not name.endswith(UNUSED)

    return model_names(load_tensors(directory, drafter_shapes(config), belongs, device))


def model_names(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as if the drafter were a model: a stage's are named `layers.<stage>.*`, the others by themselves."""
    named = {}
    for name, tensor in tensors.items():
        stage, rest = name.removeprefix(DRAFT_PREFIX).split(".", 1)
        if rest.startswith(_LAYER_PARTS):
            named[f"{_LAYER_PREFIX}{stage}.{rest}"] = tensor
        else:
            named[_MARKOV_V41.get(rest, rest)] = tensor
    return named
