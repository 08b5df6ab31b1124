"""What sizing needs of a model's config.json: layers by compression ratio, widths, numbers of experts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv4_serve.errors import CommandError

RATIOS = (0, 1, 2, 4, 128)
LOW_RATIOS = (1, 2)
REQUIRED = (
    "num_hidden_layers",
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "index_n_heads",
    "index_head_dim",
    "sliding_window",
    "n_routed_experts",
    "n_shared_experts",
    "moe_intermediate_size",
)


@dataclass(frozen=True, slots=True)
class Draft:
    """Layers of a bundled draft, the routed experts of each, and the tokens that one step drafts (0: not fixed)."""

    layers: int = 0
    experts: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """Numbers of one model. `ratios` has one entry a main layer; `kv_sources` are the layers that own low-ratio KV."""

    name: str
    ratios: tuple[int, ...]
    sizes: dict[str, int]
    kv_sources: tuple[int, ...] = ()
    draft: Draft = Draft()
    engram_rows: int = 0
    engram_dim: int = 0
    source: Path = field(default_factory=Path)

    @classmethod
    def read(cls, path: Path) -> ModelGeometry:
        """From a config.json. CommandError names the file, the field, and what was expected."""
        config = _object(path)
        # A vision model keeps the fields of its text part one level down.
        config |= config.get("text_config") or {}
        missing = [name for name in (*REQUIRED, "compress_ratios") if name not in config]
        if missing:
            raise CommandError(f"{path}: no {', '.join(missing)}; accepted is the config.json of a DeepSeek-V4 model")
        layers = int(config["num_hidden_layers"])
        ratios = tuple(int(ratio) for ratio in config["compress_ratios"][:layers])
        if len(ratios) != layers or not set(ratios) <= set(RATIOS):
            found = sorted(set(ratios) - set(RATIOS)) or f"{len(ratios)} for {layers} layers"
            raise CommandError(f"{path}: compress_ratios {found}: accepted is one of {RATIOS} for each layer")
        return cls(
            name=path.parent.name,
            ratios=ratios,
            sizes={name: int(config[name]) for name in REQUIRED},
            kv_sources=tuple(config.get("kv_source_layer_ids") or ()),
            draft=_draft(config),
            engram_rows=sum(config.get("engram_num_embeddings") or ()),
            engram_dim=int(config.get("engram_head_dim") or 0),
            source=path,
        )

    @property
    def layers(self) -> int:
        return len(self.ratios)

    @property
    def low_ratio(self) -> bool:
        """V4.1: ratios 1 and 2, whose index keys are FP4 by definition."""
        return any(ratio in LOW_RATIOS for ratio in self.ratios)

    def owners(self, ratio: int) -> int:
        """Layers that own compressed storage: all of ratios 4 and 128, only the KV sources of 1 and 2."""
        if ratio in LOW_RATIOS:
            return sum(1 for layer in self.kv_sources if layer < self.layers and self.ratios[layer] == ratio)
        return self.ratios.count(ratio)

    def index_ratios(self) -> tuple[int, ...]:
        """The compression ratio of each layer that owns index keys."""
        return tuple(ratio for ratio in (1, 2, 4) for _ in range(self.owners(ratio)))


def _draft(config: dict[str, Any]) -> Draft:
    experts = int(config["n_routed_experts"])
    # SGLang counts a drafter's stages by the layers that they read, whatever else is there.
    if layers := len(config.get("dspark_target_layer_ids") or ()) or int(config.get("n_mtp_layers") or 0):
        drafted = int(config.get("dspark_block_size") or 0)
        return Draft(layers, int(config.get("dspark_n_routed_experts") or experts), drafted)
    return Draft(int(config.get("num_nextn_predict_layers") or 0), experts)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise CommandError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CommandError(f"{path}: expected an object, found {type(found).__name__}")
    return found
