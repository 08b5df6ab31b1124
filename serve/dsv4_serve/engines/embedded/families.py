"""The model generations that this engine serves, by the `model_type` of their config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from deepseek_recipe import ModelVersion

from dsv4_kernels.registry import LogitsShape

from .causal_model import CausalModel
from .config import CommonConfig, ConfigError, ModelConfig, parse_model_config, read_config
from .model import Model
from .model_formats import V4_FORMATS, V41_FORMATS, ModelFormats
from .options import EngineOptions
from .v4_pools import V4Pools
from .v41.config import V41Config, parse_v41_config
from .v41.model import build_v41
from .v41.weights import tensor_shapes as v41_tensor_shapes
from .weights import Shape, tensor_shapes

Config = TypeVar("Config", bound=CommonConfig)
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Family(Generic[Config]):
    """How a generation's configuration and checkpoint are read, and what becomes of them.

    `build` takes weights, configuration, settled options and the context length; `logits_shapes` says which logits
    kernels the model launches, `chat_version` how chats are rendered.
    """

    model_type: str
    parse: Callable[[dict[str, Any], str], Config]
    tensor_shapes: Callable[[Config], dict[str, Shape]]
    formats: ModelFormats
    build: Callable[[Weights, Config, EngineOptions, int], CausalModel]
    logits_shapes: Callable[[Config, EngineOptions], tuple[LogitsShape, ...]]
    chat_version: ModelVersion


def _build_v4(weights: Weights, config: ModelConfig, options: EngineOptions, context_length: int) -> Model:
    return Model(weights, config, options, V4Pools(config, options, context_length), context_length)


def _v4_logits(config: ModelConfig, options: EngineOptions) -> tuple[LogitsShape, ...]:
    """Head weights are float32 here."""
    return (LogitsShape(config.index_n_heads, float_weights=True),)


def _v41_logits(config: V41Config, options: EngineOptions) -> tuple[LogitsShape, ...]:
    layouts = ("split64", "split8") if options.page8 else ("split64",)
    return tuple(LogitsShape(config.index_n_heads, layout) for layout in layouts)


V4 = Family[ModelConfig](
    "deepseek_v4",
    parse_model_config,
    tensor_shapes,
    V4_FORMATS,
    _build_v4,
    _v4_logits,
    ModelVersion.DeepseekV4Pro,
)
V41 = Family[V41Config](
    "deepseek_v41",
    parse_v41_config,
    v41_tensor_shapes,
    V41_FORMATS,
    build_v41,
    _v41_logits,
    ModelVersion.DeepseekV41Flash,
)
FAMILIES: dict[str, Family[Any]] = {family.model_type: family for family in (V4, V41)}


def family_of(raw: dict[str, Any], source: str) -> Family[Any]:
    """The family of a parsed config.json; `source` names it in errors. Raises ConfigError."""
    found = FAMILIES.get(str(raw.get("model_type")))
    if found is None:
        accepted = " or ".join(map(repr, FAMILIES))
        raise ConfigError(f"{source}: model_type={raw.get('model_type')!r}: accepted is {accepted}")
    return found


def load_config(directory: Path) -> tuple[Family[Any], CommonConfig]:
    """Read `directory/config.json` of any served generation. Raises ConfigError."""
    raw, source = read_config(directory)
    family = family_of(raw, source)
    return family, family.parse(raw, source)
