"""A C4 indexer forward of unmodified SGLang, from hidden states to page indices, over our kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.configs.model_config import ModelConfig
from torch import Tensor

import c4_oracle
import engine_context
import fp4_oracle as oracle
from c4_layer import C4Layer, rope_angles
from launch_counts import LaunchCounts

TOKENS = 1203
FLAGS = ("--enable-deepseek-v4-fp4-indexer", "--max-total-tokens", "16384", "--max-running-requests", "4")


@pytest.fixture
def layer(backend: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[C4Layer]:
    with engine_context.engine(engine_context.write_model(tmp_path), *FLAGS) as arguments:
        config = ModelConfig.from_server_args(arguments).hf_config
        yield C4Layer(config, engine_context.token_pool(arguments, 16384), monkeypatch)


def inputs(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 256, generator=generator).to(torch.bfloat16)
    return x, torch.randn(rows, 128, generator=generator).to(torch.bfloat16)


def stored_keys(layer: C4Layer, keys: int) -> oracle.F64:
    return c4_oracle.stored_keys(layer.backend.token_to_kv_pool, 1, layer.slots(keys))


def expected(layer: C4Layer, x: Tensor, q_lora: Tensor, position: int) -> set[int]:
    visible = (position + 1) // 4
    return c4_oracle.best_slots(layer.indexer, x, q_lora, position, stored_keys(layer, visible), layer.slots(visible))


def test_prefill_then_decode_select_the_oracles_keys(layer: C4Layer, backend: str, scored: LaunchCounts) -> None:
    x, q_lora = inputs(TOKENS, 1)
    written = LaunchCounts("write_index_keys")
    picked = layer.extend(x, q_lora)
    for position in (0, 2, 3, 6, 7, 255, 256, 259, 700, 1023, 1024, TOKENS - 1):
        assert c4_oracle.chosen(picked[position]) == expected(layer, x[position], q_lora[position], position), position
    for step in range(3):
        x, q_lora = inputs(1, 100 + step)
        picked = layer.decode(x, q_lora)
        assert c4_oracle.chosen(picked[0]) == expected(layer, x[0], q_lora[0], TOKENS + step), step
    assert scored.made() == {("prefill", backend): 1, ("decode", backend): 3}
    assert sum(written.made().values()) == 4


def test_keys_in_the_pool_are_the_pooled_tokens_normed_turned_and_rounded(layer: C4Layer) -> None:
    """Within half a step of FP4 of float64: the bf16 mirror of the norm, positions of the group's first token."""
    x, q_lora = inputs(800, 2)
    layer.extend(x, q_lora)
    found = stored_keys(layer, 200)
    compressor = layer.indexer.compressor
    from sglang.srt.layers.attention.dsv4 import compressor_v2

    pooling: Any = compressor_v2.compress_forward
    bias = compressor.ape.data.view(2, 4, 128)
    pooled = torch.stack([pooling._pool(4 * k + 4, bias, 128) for k in range(200)]).to(torch.bfloat16)
    weight = compressor.norm.weight.data.to(torch.bfloat16).double().numpy()
    cos, sin = (t[torch.arange(200) * 4].double().numpy() for t in rope_angles())
    exact = oracle.hadamard(oracle.rope(oracle.rms_norm(pooled.double().numpy(), weight, 1e-6), cos, sin))
    groups = np.abs(exact).reshape(200, 4, 32).max(-1)
    # A group's scale is at most a third of its largest magnitude, and codes 4 and 6 are two scales apart.
    assert (np.abs(found - exact).reshape(200, 4, 32).max(-1) <= groups / 3 + 1e-6).all()
    assert np.corrcoef(found.flatten(), exact.flatten())[0, 1] > 0.99


def test_another_weight_of_the_norm_reaches_the_keys_only_through_the_loader(layer: C4Layer) -> None:
    """Upstream's hazard: the writer reads a bf16 mirror, which an update that bypasses the loader leaves behind."""
    norm = layer.indexer.compressor.norm
    mirror = norm.fp4_weight_bf16.clone()
    norm.weight.data.mul_(2)
    assert torch.equal(norm.fp4_weight_bf16, mirror)
    layer.indexer.compressor.load_norm_weight(norm.weight, norm.weight.data.clone())
    assert torch.equal(norm.fp4_weight_bf16, norm.weight.data.to(torch.bfloat16))
