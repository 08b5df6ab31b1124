"""DeepSeek-V4.1's configuration: which layers own compressed KV, which choose entries, which read n-grams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..config import CommonConfig, ConfigError, parsed_fields, plain_fields, require_model_type
from ..geometry import MAX_NGRAM_TOKENS
from .ngram import BucketLayout

RATIOS = (0, 1, 2)
CANDIDATE_BLOCK = 8


@dataclass(frozen=True, slots=True)
class V41Config(CommonConfig):
    """Hyper-parameters under DeepSeek's field names.

    A layer of ratio 1 or 2 reads the compressed KV of the last of `kv_source_layer_ids` up to it, and the entries that
    the last of `index_source_layer_ids` up to it chose. Indexers after `candidate_source_layer_id` (-1: none) choose
    inside the blocks that it published.
    """

    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int

    def __post_init__(self) -> None:
        CommonConfig.__post_init__(self)
        self.require(all(r in RATIOS for r in self.compress_ratios), "compress_ratios", "ratios 0, 1 and 2")
        self._check_sources()
        if self.candidate_source_layer_id >= 0:
            self._check_candidates()
        if self.engram_layer_ids:
            self._check_engram()

    def _check_sources(self) -> None:
        for field in ("kv_source_layer_ids", "index_source_layer_ids"):
            ids = getattr(self, field)
            compressed = all(0 <= i < self.num_hidden_layers and self.compress_ratios[i] for i in ids)
            self.require(ids == tuple(sorted(set(ids))) and compressed, field, "ascending layers of ratio 1 or 2")
        for layer, ratio in enumerate(self.compress_ratios):
            if not ratio:
                continue
            owner, chooser = self.kv_source_of(layer), self.index_source_of(layer)
            same = owner is not None and self.compress_ratios[owner] == ratio
            self.require(same, "kv_source_layer_ids", f"a source of ratio {ratio} for layer {layer}, at or before it")
            fits = chooser is not None and self.kv_source_of(chooser) == owner
            self.require(fits, "index_source_layer_ids", f"a source over the KV of layer {owner} for layer {layer}")

    def _check_candidates(self) -> None:
        source, later = self.candidate_source_layer_id, self.candidate_consumers
        self.require(source in self.index_source_layer_ids, "candidate_source_layer_id", "-1 or an index source")
        same = all(self.kv_source_of(i) == self.kv_source_of(source) for i in later)
        self.require(same, "candidate_source_layer_id", "a source over the KV of all later index sources")
        self.require(self.candidate_block_size == CANDIDATE_BLOCK, "candidate_block_size", str(CANDIDATE_BLOCK))
        # A row that sees no more entries than it may choose must find all of them among its candidates.
        least = -(-(self.index_topk + CANDIDATE_BLOCK - 1) // CANDIDATE_BLOCK)
        self.require(self.candidate_topk_blocks >= least, "candidate_topk_blocks", f"{least} or more: index_topk fits")

    def _check_engram(self) -> None:
        known = all(0 <= i < self.num_hidden_layers for i in self.engram_layer_ids)
        self.require(known, "engram_layer_ids", f"layers 0 to {self.num_hidden_layers - 1}")
        sizes = 2 <= self.engram_max_ngram_size <= MAX_NGRAM_TOKENS
        self.require(sizes, "engram_max_ngram_size", f"2 to {MAX_NGRAM_TOKENS}")
        for field in ("engram_n_heads", "engram_head_dim"):
            self.require(getattr(self, field) >= 1, field, "1 or more")
        self.require(self.engram_compressed_vocab_size >= 1, "engram_compressed_vocab_size", "1 or more")
        rows = self.engram_buckets.rows
        self.require(
            self.engram_num_embeddings == rows, "engram_num_embeddings", f"{list(rows)}, the sums of the primes"
        )

    @property
    def candidate_consumers(self) -> tuple[int, ...]:
        """Index sources that choose inside the candidate source's blocks."""
        source = self.candidate_source_layer_id
        return tuple(i for i in self.index_source_layer_ids if 0 <= source < i)

    @property
    def engram_buckets(self) -> BucketLayout:
        """Where the n-gram hashes of each engram layer land in its table."""
        return BucketLayout.of(
            len(self.engram_layer_ids), self.engram_max_ngram_size, self.engram_n_heads, self.engram_vocab_size
        )

    def kv_source_of(self, layer: int) -> int | None:
        """The layer whose compressed KV this one reads; None for a window-only layer."""
        return self._last(self.kv_source_layer_ids, layer)

    def index_source_of(self, layer: int) -> int | None:
        """The layer whose choice of entries this one reads; None for a window-only layer."""
        return self._last(self.index_source_layer_ids, layer)

    def _last(self, sources: tuple[int, ...], layer: int) -> int | None:
        before = [i for i in sources if i <= layer] if self.compress_ratios[layer] else []
        return before[-1] if before else None


def parse_v41_config(raw: dict[str, Any], source: str) -> V41Config:
    """Build a V41Config from the parsed JSON, flat or with its text part under `text_config`.

    Raises ConfigError; a model with a vision tower is refused, because only its text part could be served.
    """
    require_model_type(raw, source, "deepseek_v41")
    text = raw.get("text_config") or {}
    flat = {**text, **{name: value for name, value in raw.items() if name != "text_config"}}
    if raw.get("vision_config") or flat.get("vision_n_layers"):
        raise ConfigError(
            f"{source}: vision_config is set: the embedded engine serves text only; accepted is a model without it"
        )
    require_model_type(flat, source, "deepseek_v41")
    for name, wanted in (("hc_pre_from_prev_sublayer", True), ("q_head_norm", False)):
        if flat.get(name, wanted) != wanted:
            raise ConfigError(f"{source}: {name}={flat[name]!r}: accepted is {wanted!r}")
    return V41Config(**plain_fields(V41Config, flat, source), **parsed_fields(flat, source))
