"""Which tensors a DeepSeek-V4 checkpoint holds (DeepSeek's names), and loading them with exact errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .config import CommonConfig, ModelConfig

Shape = tuple[int, ...]

DRAFT_PREFIX = "mtp."
"""Begins the names of a drafter's tensors."""

DRAFTER_FILE = "drafter.safetensors"
"""A drafter beside a model's files; a published checkpoint has its drafter among them."""


class WeightError(ValueError):
    """A checkpoint that does not fit its config.json; the message names the tensor and both shapes."""


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name and shape of every tensor that the model reads, in a stable order."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {
        "embed.weight": (config.vocab_size, hidden),
        "head.weight": (config.vocab_size, hidden),
        "norm.weight": (hidden,),
        "hc_head_fn": (config.hc_mult, config.hc_mult * hidden),
        "hc_head_base": (config.hc_mult,),
        "hc_head_scale": (1,),
    }
    for layer, ratio in enumerate(config.compress_ratios):
        prefix = f"layers.{layer}."
        shapes.update((prefix + name, shape) for name, shape in hyper_shapes(config))
        shapes.update((f"{prefix}attn.{name}", shape) for name, shape in _attention_shapes(config, ratio))
        shapes.update((f"{prefix}ffn.{name}", shape) for name, shape in _ffn_shapes(config, layer))
    return shapes


def hyper_shapes(config: CommonConfig) -> Iterator[tuple[str, Shape]]:
    """Norms and hyper-connections of one layer."""
    hidden, mix = config.hidden_size, (2 + config.hc_mult) * config.hc_mult
    for part in ("attn", "ffn"):
        yield f"{part}_norm.weight", (hidden,)
        yield f"hc_{part}_fn", (mix, config.hc_mult * hidden)
        yield f"hc_{part}_base", (mix,)
        yield f"hc_{part}_scale", (3,)


def projection_shapes(config: CommonConfig) -> Iterator[tuple[str, Shape]]:
    """What the attention of every layer has: queries, window rows, output, sink."""
    hidden, width = config.hidden_size, config.num_attention_heads * config.head_dim
    yield "wq_a.weight", (config.q_lora_rank, hidden)
    yield "q_norm.weight", (config.q_lora_rank,)
    yield "wq_b.weight", (width, config.q_lora_rank)
    yield "wkv.weight", (config.head_dim, hidden)
    yield "kv_norm.weight", (config.head_dim,)
    yield "wo_a.weight", (config.o_groups * config.o_lora_rank, width // config.o_groups)
    yield "wo_b.weight", (hidden, config.o_groups * config.o_lora_rank)
    yield "attn_sink", (config.num_attention_heads,)


def expert_shapes(config: CommonConfig) -> Iterator[tuple[str, Shape]]:
    """Routed experts and the shared one of one layer."""
    hidden, inner = config.hidden_size, config.moe_intermediate_size
    for expert in [*(f"experts.{e}" for e in range(config.n_routed_experts)), "shared_experts"]:
        yield f"{expert}.w1.weight", (inner, hidden)
        yield f"{expert}.w2.weight", (hidden, inner)
        yield f"{expert}.w3.weight", (inner, hidden)


def _attention_shapes(config: ModelConfig, ratio: int) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_size
    yield from projection_shapes(config)
    if ratio:
        yield from _compressor_shapes("compressor.", hidden, config.head_dim, ratio)
    if ratio == 4:
        yield "indexer.wq_b.weight", (config.index_n_heads * config.index_head_dim, config.q_lora_rank)
        yield "indexer.weights_proj.weight", (config.index_n_heads, hidden)
        yield from _compressor_shapes("indexer.compressor.", hidden, config.index_head_dim, ratio)


def _compressor_shapes(prefix: str, hidden: int, dim: int, ratio: int) -> Iterator[tuple[str, Shape]]:
    series = 2 if ratio == 4 else 1
    yield f"{prefix}wkv.weight", (series * dim, hidden)
    yield f"{prefix}wgate.weight", (series * dim, hidden)
    yield f"{prefix}ape", (ratio, series * dim)
    yield f"{prefix}norm.weight", (dim,)


def _ffn_shapes(config: ModelConfig, layer: int) -> Iterator[tuple[str, Shape]]:
    yield "gate.weight", (config.n_routed_experts, config.hidden_size)
    if layer < config.num_hash_layers:
        yield "gate.tid2eid", (config.vocab_size, config.num_experts_per_tok)
    else:
        yield "gate.bias", (config.n_routed_experts,)
    yield from expert_shapes(config)


def load_weights(directory: Path, config: ModelConfig, device: str = "cpu") -> dict[str, torch.Tensor]:
    """All tensors of `tensor_shapes`, floats as float32 and `tid2eid` as int64, on `device`.

    Tensors of draft layers (`mtp.*`) are left aside. Raises WeightError for a file that cannot be read, a tensor that
    is missing, unexpected or of another shape or kind.
    """
    return load_tensors(directory, tensor_shapes(config), lambda name: not name.startswith(DRAFT_PREFIX), device)


def load_tensors(
    directory: Path, wanted: dict[str, Shape], belongs: Callable[[str], bool], device: str
) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint whose names `belongs` accepts, which must be exactly those `wanted`."""
    found: dict[str, torch.Tensor] = {}
    for path in _checkpoint_files(directory):
        try:
            with safe_open(path, framework="pt") as file:
                for name in filter(belongs, file.keys()):
                    found[name] = _convert(name, file.get_tensor(name), wanted, path)
        except (SafetensorError, OSError) as error:
            raise WeightError(f"{path}: cannot be read as safetensors ({error})") from None
    missing = [name for name in wanted if name not in found]
    if missing:
        name = missing[0]
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise WeightError(f"{directory}: tensor {name!r} of shape {list(wanted[name])} is missing{more}")
    return {name: tensor.to(device) for name, tensor in found.items()}


def _convert(name: str, tensor: torch.Tensor, wanted: dict[str, Shape], path: Path) -> torch.Tensor:
    if name not in wanted:
        raise WeightError(f"{path}: unexpected tensor {name!r} of shape {list(tensor.shape)}")
    if tuple(tensor.shape) != wanted[name]:
        raise WeightError(
            f"{path}: tensor {name!r} has shape {list(tensor.shape)}, config.json asks for {list(wanted[name])}"
        )
    if name.endswith("tid2eid"):
        return tensor.long()
    if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise WeightError(f"{path}: tensor {name!r} is {tensor.dtype}: accepted are float32, bfloat16 and float16")
    return tensor.float()


def _checkpoint_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        drafter = directory / DRAFTER_FILE
        return [*(directory / name for name in names), *([drafter] if drafter.exists() else [])]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise WeightError(f"{directory}: no *.safetensors file in it")
    return files
