"""DSpark's hyper-parameters: what a model's config.json says of the drafter beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import CommonConfig, ConfigError, ModelConfig, read_config
from ..geometry import MAX_DRAFT_TOKENS
from ..v41.config import V41Config

STAGE_SIZES = (
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "num_attention_heads",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
)
"""Sizes of a stage that `dspark_<name>` may set apart from the model's. Published models set the first two."""

_NUMBERS = ("n_mtp_layers", "dspark_block_size", "dspark_noise_token_id", "dspark_markov_rank")
_TARGETS = "dspark_target_layer_ids"
MAX_STAGES = 8


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A drafter of `stages` stages, each a layer of the model's kind (`stage`) without compressed entries.

    It drafts `block` tokens in one pass, the unknown ones as `noise_token`, and reads the model's hidden states at
    `target_layers`.
    """

    stage: ModelConfig | V41Config
    block: int
    noise_token: int
    target_layers: tuple[int, ...]
    markov_rank: int

    def __post_init__(self) -> None:
        def require(ok: bool, field: str, value: object, accepted: str) -> None:
            if not ok:
                raise ConfigError(f"config.json: {field}={value!r}: accepted is {accepted}")

        known = self.stage.vocab_size
        require(1 <= self.stages <= MAX_STAGES, "n_mtp_layers", self.stages, f"1 to {MAX_STAGES}")
        require(1 <= self.block <= MAX_DRAFT_TOKENS, "dspark_block_size", self.block, f"1 to {MAX_DRAFT_TOKENS}")
        require(0 <= self.noise_token < known, "dspark_noise_token_id", self.noise_token, f"a token, 0 to {known - 1}")
        require(self.markov_rank >= 1, "dspark_markov_rank", self.markov_rank, "1 or more")

    @property
    def stages(self) -> int:
        return self.stage.num_hidden_layers


def load_drafter_config(directory: Path, config: CommonConfig) -> DrafterConfig:
    """Read the drafter's fields of `directory/config.json`, whose model's are `config`.

    Raises ConfigError when there is no drafter, or none that this engine can run.
    """
    raw, source = read_config(directory)
    return parse_drafter_config(raw, config, source)


def parse_drafter_config(raw: dict[str, Any], config: CommonConfig, source: str) -> DrafterConfig:
    """The drafter of a parsed config.json, flat or with its text part under `text_config`; `source` names it in
    errors. Raises ConfigError."""
    fields = {**(raw.get("text_config") or {}), **raw}
    # A checkpoint that does not count its stages has one for each layer that it reads, as SGLang counts them.
    if fields.get("n_mtp_layers") is None and isinstance(fields.get(_TARGETS), list):
        fields["n_mtp_layers"] = len(fields[_TARGETS])
    missing = [name for name in (*_NUMBERS, _TARGETS) if fields.get(name) is None]
    if missing:
        raise ConfigError(
            f"speculative='dspark': {source} describes no DSpark drafter (missing {', '.join(missing)}); "
            "accepted is a model with one, or speculative ngram or off"
        )
    sizes = [f"dspark_{name}" for name in STAGE_SIZES if f"dspark_{name}" in fields]
    for name in (*_NUMBERS, *sizes):
        if type(fields[name]) is not int:
            raise ConfigError(f"{source}: {name}={fields[name]!r}: accepted is an integer")
    stages, *rest = (fields[name] for name in _NUMBERS)
    stage = _stage(config, stages, {name.removeprefix("dspark_"): fields[name] for name in sizes})
    block, noise_token, rank = rest
    return DrafterConfig(stage, block, noise_token, _targets(fields[_TARGETS], config, source), rank)


def _targets(value: object, config: CommonConfig, source: str) -> tuple[int, ...]:
    layers = tuple(layer for layer in range(config.num_hidden_layers) if isinstance(value, list) and layer in value)
    if not layers or list(layers) != value:
        known = f"0 to {config.num_hidden_layers - 1}"
        raise ConfigError(f"{source}: {_TARGETS}={value!r}: accepted is a list of layers in rising order, each {known}")
    return layers


def _stage(config: CommonConfig, stages: int, sizes: dict[str, int]) -> ModelConfig | V41Config:
    """The configuration of a model of so many layers with a window only. Raises ConfigError for sizes that fit not."""
    shape: dict[str, Any] = {"num_hidden_layers": stages, "compress_ratios": (0,) * stages, **sizes}
    if isinstance(config, V41Config):
        shape |= {"kv_source_layer_ids": (), "index_source_layer_ids": (), "candidate_source_layer_id": -1}
        return replace(config, **shape, engram_layer_ids=(), engram_num_embeddings=())
    assert isinstance(config, ModelConfig)
    return replace(config, **shape, num_hash_layers=0)
