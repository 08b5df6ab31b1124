"""The model generations that this engine serves, by the `model_type` of their config.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from .config import CommonConfig, ConfigError, ModelConfig, parse_model_config, read_config
from .v41.config import V41Config, parse_v41_config
from .v41.weights import tensor_shapes as v41_tensor_shapes
from .weights import Shape, tensor_shapes

Config = TypeVar("Config", bound=CommonConfig)


@dataclass(frozen=True)
class Family(Generic[Config]):
    """How a generation's configuration and checkpoint are read."""

    model_type: str
    parse: Callable[[dict[str, Any], str], Config]
    tensor_shapes: Callable[[Config], dict[str, Shape]]


V4 = Family[ModelConfig]("deepseek_v4", parse_model_config, tensor_shapes)
V41 = Family[V41Config]("deepseek_v41", parse_v41_config, v41_tensor_shapes)
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
