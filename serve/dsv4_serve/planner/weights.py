"""Bytes of weights on each GPU: the files' when the model is there, else an estimate from its geometry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsv4_serve.planner.geometry import ModelGeometry

FP4 = 0.5 + 1 / 32  # e2m1 pairs and one e8m0 scale for 32 values
FP8 = 1.0
BF16 = 2.0
ENGRAM = 1.0 + 1 / 32


@dataclass(frozen=True, slots=True)
class Weights:
    """`sharded` bytes are spread over the GPUs of a replica, `replicated` bytes lie on each; `tables` (Engram) as well
    spread, or on the host. `source` says whence."""

    sharded: float
    replicated: float
    tables: float
    source: str

    @property
    def total(self) -> int:
        return int(self.sharded + self.replicated + self.tables)

    def per_gpu(self, gpus: int, tables_on_host: bool) -> int:
        spread = self.sharded if tables_on_host else self.sharded + self.tables
        return int(spread / gpus + self.replicated)


def weights(geometry: ModelGeometry, model_dir: Path, draft: bool) -> Weights:
    """An estimate, scaled to the size of the safetensors files when `model_dir` has some."""
    estimate = _estimate(geometry, draft)
    on_disk = sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
    if not on_disk:
        return estimate
    scale = on_disk / estimate.total
    parts = (estimate.sharded * scale, estimate.replicated * scale, estimate.tables * scale)
    return Weights(*parts, f"files in {model_dir}")


def _estimate(geometry: ModelGeometry, draft: bool) -> Weights:
    """Routed experts in FP4, other matrices in FP8, embeddings, gates and compressors in bf16."""
    g = geometry.sizes
    expert = 3 * g["hidden_size"] * g["moe_intermediate_size"]
    experts = expert * g["n_routed_experts"] * geometry.layers
    if draft:
        experts += expert * geometry.draft.experts * geometry.draft.layers
    layers = geometry.layers + (geometry.draft.layers if draft else 0)
    sharded = experts * FP4 + layers * (_head_matrices(g) + expert * g["n_shared_experts"]) * FP8
    sharded += 2 * g["vocab_size"] * g["hidden_size"] * BF16
    low_rank = g["hidden_size"] * (g["q_lora_rank"] + g["head_dim"]) * FP8
    replicated = layers * (low_rank + g["hidden_size"] * g["n_routed_experts"] * BF16)
    replicated += len(geometry.index_ratios()) * _indexer(g)
    tables = geometry.engram_rows * geometry.engram_dim * ENGRAM
    return Weights(sharded, replicated, tables, "estimate from the config")


def _head_matrices(g: dict[str, int]) -> int:
    heads = g["num_attention_heads"] * g["head_dim"]
    return g["q_lora_rank"] * heads + heads * g["o_lora_rank"] + g["o_groups"] * g["o_lora_rank"] * g["hidden_size"]


def _indexer(g: dict[str, int]) -> float:
    query = g["q_lora_rank"] * g["index_n_heads"] * g["index_head_dim"] * FP8
    compressors = 4 * g["hidden_size"] * (g["head_dim"] + g["index_head_dim"]) * BF16
    return query + compressors + g["hidden_size"] * g["index_n_heads"] * BF16
