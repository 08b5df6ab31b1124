"""Which tensors a text-only DeepSeek-V4.1 checkpoint holds (DeepSeek's names)."""

from __future__ import annotations

from collections.abc import Iterator

from ..weights import Shape, expert_shapes, hyper_shapes, projection_shapes
from .config import V41Config


def tensor_shapes(config: V41Config) -> dict[str, Shape]:
    """Name and shape of every tensor that the model reads, in a stable order."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {
        "embed.weight": (config.vocab_size, hidden),
        "head.weight": (config.vocab_size, hidden),
        "norm.weight": (hidden,),
    }
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        shapes.update((prefix + name, shape) for name, shape in _layer_shapes(config, layer))
    return shapes


def _layer_shapes(config: V41Config, layer: int) -> Iterator[tuple[str, Shape]]:
    yield from hyper_shapes(config)
    for name, shape in (*projection_shapes(config), *_source_shapes(config, layer)):
        yield f"attn.{name}", shape
    yield "ffn.gate.weight", (config.n_routed_experts, config.hidden_size)
    yield "ffn.gate.bias", (config.n_routed_experts,)
    for name, shape in expert_shapes(config):
        yield f"ffn.{name}", shape
    if layer in config.engram_layer_ids:
        yield from _engram_shapes(config, config.engram_layer_ids.index(layer))


def _source_shapes(config: V41Config, layer: int) -> Iterator[tuple[str, Shape]]:
    hidden, dim, width = config.hidden_size, config.head_dim, config.index_head_dim
    if layer in config.kv_source_layer_ids:
        yield "compressor.wkv.weight", (dim, hidden)
        if config.compress_ratios[layer] > 1:
            yield "compressor.wgate.weight", (dim, hidden)
        yield "compressor.norm.weight", (dim,)
        yield "indexer.wk.weight", (width, dim)
        yield "indexer.k_norm.weight", (width,)
    if layer in config.index_source_layer_ids:
        yield "indexer.wq_b.weight", (config.index_n_heads * width, config.q_lora_rank)
        yield "indexer.weights_proj.weight", (config.index_n_heads, hidden)


def _engram_shapes(config: V41Config, place: int) -> Iterator[tuple[str, Shape]]:
    hidden, streams = config.hidden_size, config.hc_mult
    looked_up = config.engram_buckets.columns * config.engram_head_dim
    yield "engram.embed.weight", (config.engram_num_embeddings[place], config.engram_head_dim)
    yield "engram.wkv.weight", ((streams + 1) * hidden, looked_up)
    yield "engram.q_weight", (streams, hidden)
    yield "engram.k_weight", (streams, hidden)
