"""The model's configuration (DeepSeek's `config.json`) and the engine's own options."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PAGE_TOKENS = 256
"""Tokens a page: 64 C4 entries, 2 C128 entries. The production engines use the same page."""

V4_RATIOS = (0, 4, 128)

IndexerDtype = Literal["fp4", "fp8", "bf16", "float32"]
KVDtype = Literal["v4", "v41", "bf16", "float32"]
Device = Literal["cpu", "cuda"]


class ConfigError(ValueError):
    """A configuration that the embedded engine cannot serve; the message names field, value and accepted form."""


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN parameters of the compressed layers' RoPE (no mscale: DeepSeek-V4 leaves the amplitude alone)."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class CommonConfig:
    """Hyper-parameters that every DeepSeek-V4 generation has, under DeepSeek's field names."""

    vocab_size: int
    hidden_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    sliding_window: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    routed_scaling_factor: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    yarn: YarnScaling | None
    max_position_embeddings: int
    bos_token_id: int
    eos_token_id: int

    def __post_init__(self) -> None:
        require = self.require
        require(self.head_dim == 512, "head_dim", "512 (448 without and 64 with RoPE)")
        require(self.qk_rope_head_dim == 64, "qk_rope_head_dim", "64")
        require(self.index_head_dim == 128, "index_head_dim", "128")
        require(self.index_n_heads in (16, 32, 64, 128), "index_n_heads", "16, 32, 64 or 128")
        require(self.index_topk % 8 == 0 and self.index_topk > 0, "index_topk", "a positive multiple of 8")
        require(self.sliding_window == 128, "sliding_window", "128")
        require(self.num_attention_heads % 4 == 0, "num_attention_heads", "a multiple of 4")
        require(self.num_attention_heads % self.o_groups == 0, "o_groups", "a divisor of num_attention_heads")
        require(len(self.compress_ratios) == self.num_hidden_layers, "compress_ratios", "one ratio for each layer")
        require(1 <= self.num_experts_per_tok <= self.n_routed_experts, "num_experts_per_tok", "1 to n_routed_experts")
        require(self.n_shared_experts == 1, "n_shared_experts", "1")
        require(self.hc_mult == 4, "hc_mult", "4")
        require(self.hc_sinkhorn_iters >= 1, "hc_sinkhorn_iters", "1 or more")
        require(self.max_position_embeddings >= PAGE_TOKENS, "max_position_embeddings", f"{PAGE_TOKENS} or more")

    def require(self, ok: bool, field: str, accepted: str) -> None:
        """Raise ConfigError that names the field and its value unless `ok`."""
        if not ok:
            raise ConfigError(f"config.json: {field}={getattr(self, field)!r}: accepted is {accepted}")

    def layers_of_ratio(self, ratio: int) -> tuple[int, ...]:
        """The layer numbers with this compression ratio, in order."""
        return tuple(i for i, r in enumerate(self.compress_ratios) if r == ratio)


@dataclass(frozen=True, slots=True)
class ModelConfig(CommonConfig):
    """DeepSeek-V4's hyper-parameters."""

    num_hash_layers: int

    def __post_init__(self) -> None:
        CommonConfig.__post_init__(self)
        self.require(all(r in V4_RATIOS for r in self.compress_ratios), "compress_ratios", "ratios 0, 4 and 128")
        self.require(0 <= self.num_hash_layers <= self.num_hidden_layers, "num_hash_layers", "0 to num_hidden_layers")


_PARSED = ("compress_ratios", "yarn")
"""Fields that are not the JSON's values as they stand."""


def load_model_config(directory: Path) -> ModelConfig:
    """Read `directory/config.json` of a DeepSeek-V4.

    Raises ConfigError with the file, field and accepted form when it is absent, malformed or of another model.
    """
    raw, source = read_config(directory)
    return parse_model_config(raw, source)


def read_config(directory: Path) -> tuple[dict[str, Any], str]:
    """The parsed JSON of `directory/config.json`, and the file's name for errors. Raises ConfigError."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; a model directory holds config.json, safetensors, tokenizer.json"
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: not JSON ({error})") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: holds {type(raw).__name__}: accepted is an object")
    return raw, str(path)


def parse_model_config(raw: dict[str, Any], source: str) -> ModelConfig:
    """Build a ModelConfig from the parsed JSON; `source` names it in errors."""
    require_model_type(raw, source, "deepseek_v4")
    return ModelConfig(**plain_fields(ModelConfig, raw, source), **parsed_fields(raw, source))


def require_model_type(raw: dict[str, Any], source: str, model_type: str) -> None:
    """Raise ConfigError unless this engine reads the checkpoint's kind: the model type, and no quantised weights."""
    if raw.get("model_type") != model_type:
        raise ConfigError(f"{source}: model_type={raw.get('model_type')!r}: accepted is {model_type!r}")
    if raw.get("quantization_config"):
        raise ConfigError(
            f"{source}: quantization_config is set: the embedded engine reads bf16 or float32 weights only"
        )
    if raw.get("scoring_func", "sqrtsoftplus") != "sqrtsoftplus":
        raise ConfigError(f"{source}: scoring_func={raw['scoring_func']!r}: accepted is 'sqrtsoftplus'")


def plain_fields(kind: type[CommonConfig], raw: dict[str, Any], source: str) -> dict[str, Any]:
    """The values of a configuration class's fields that stand in the JSON as they are; lists become tuples.

    Raises ConfigError that lists the fields which are missing.
    """
    names = [f.name for f in dataclasses.fields(kind) if f.name not in _PARSED]
    missing = [name for name in (*names, "compress_ratios") if name not in raw]
    if missing:
        raise ConfigError(f"{source}: missing field(s) {', '.join(missing)}")
    return {name: tuple(raw[name]) if isinstance(raw[name], list) else raw[name] for name in names}


def parsed_fields(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """The fields that `plain_fields` leaves out."""
    # The published configs list the MTP layers' ratios after those of the model proper.
    ratios = tuple(int(r) for r in raw["compress_ratios"][: int(raw["num_hidden_layers"])])
    return {"compress_ratios": ratios, "yarn": _parse_yarn(raw.get("rope_scaling"), source)}


def _parse_yarn(raw: dict[str, Any] | None, source: str) -> YarnScaling | None:
    if raw is None:
        return None
    kind = raw.get("rope_type", raw.get("type"))
    if kind != "yarn":
        raise ConfigError(f"{source}: rope_scaling type {kind!r}: accepted is 'yarn' or no rope_scaling")
    return YarnScaling(
        factor=float(raw["factor"]),
        original_max_position_embeddings=int(raw["original_max_position_embeddings"]),
        beta_fast=float(raw.get("beta_fast", 32)),
        beta_slow=float(raw.get("beta_slow", 1)),
    )
