"""What SGLang 0.5.23 gets wrong on the index path, shown unmodified, and the same through the plugin."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.kernels.ops.attention.dsv4 import fp4_indexer_hip as hip
from sglang.kernels.ops.attention.dsv4.compress import CompressorDecodePlan
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_executor.model_runner_components import weight_updater
from torch import Tensor, nn

import aiter_stand_ins as stand_ins
import engine_context
import plugin_world
from c4_layer import C4Layer
from dsv4_kernels import aiter_tensors, counters, reference
from dsv4_kernels.layout import SPLIT64
from dsv4_serve.engines.hooks import HookError
from dsv4_serve.engines.sglang import fixes, limits
from dsv4_serve.engines.sglang.index_path import IndexPath
from index_world import IndexWorld, Kind, yarn_angles

FLAGS = ("--enable-deepseek-v4-fp4-indexer", "--max-total-tokens", "16384", "--max-running-requests", "4")


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[C4Layer]:
    with engine_context.engine(engine_context.write_model(tmp_path), *FLAGS) as arguments:
        config = ModelConfig.from_server_args(arguments).hf_config
        yield C4Layer(config, engine_context.token_pool(arguments, 16384), monkeypatch)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fixes, "_rope_positions", [])
    with plugin_world.hooks():
        yield


# Number of index heads


def test_upstream_makes_64_heads_of_any_number_of_heads() -> None:
    made: list[tuple[int, ...]] = []
    with plugin_world.aiter(
        dtypes=stand_ins.modules()["aiter"].dtypes,
        rope_rotate_activation=lambda out, q, *rest, **named: made.append((*out.shape, *q.shape)),
    ):
        hip.aiter_q_indexer_fp4(torch.zeros(2, 32, 128).bfloat16(), *yarn_angles(), torch.arange(2))
    assert made == [(2, 64, 64, 2, 32, 128)]


@pytest.mark.parametrize("backend", ["reference", "aiter"])
def test_ours_packs_as_many_heads_as_there_are(backend: str) -> None:
    q = torch.randn(2, 32, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    cos, sin = yarn_angles()
    known = reference.quantize_query(q, cos, sin, torch.arange(2), aiter_tensors.spec(SPLIT64))
    names = {"dtypes": stand_ins.modules()["aiter"].dtypes}
    with plugin_world.aiter(**names), plugin_world.routed(backend=backend, allow_fallback=True):
        codes, scales = hip.aiter_q_indexer_fp4(q, cos, sin, torch.arange(2))
    assert known.payload is not None
    assert known.scale is not None
    assert torch.equal(codes.view(torch.uint8), known.payload)
    assert torch.equal(scales, known.scale)


def config(**changes: Any) -> SimpleNamespace:
    sizes = {"index_head_dim": 128, "qk_rope_head_dim": 64, "max_position_embeddings": 4096}
    return SimpleNamespace(hf_config=SimpleNamespace(**sizes | changes), context_len=changes.pop("context_len", 4096))


@pytest.mark.parametrize("heads", [24, 0, 8, 128])
def test_heads_without_kernels_are_a_failed_start(heads: int) -> None:
    with pytest.raises(HookError, match=f"index_n_heads={heads}: accepted is a multiple of 16 from 16 to 64"):
        limits.check(config(), IndexPath(c4=True, heads=heads))
    limits.check(config(), IndexPath(c4=True, heads=32))


def test_other_dimensions_are_a_failed_start() -> None:
    with pytest.raises(HookError, match="index_head_dim=64: accepted is 128"):
        limits.check(config(index_head_dim=64), IndexPath(c4=True))


# Bound of RoPE positions


def write_metadata(length: int) -> Any:
    """As the backend asks: with the width of its request table, here far past the model's RoPE table."""
    words = torch.tensor([[length, 0, 0, 0]], dtype=torch.int32)
    plan = CompressorDecodePlan(4, words.view(torch.uint8))
    return hip.prepare_fp4_k_write_metadata(plan, torch.tensor([70]), 1 << 20)


def test_upstream_lets_positions_past_the_rope_table_through() -> None:
    rope_positions = len(yarn_angles()[0])
    made = write_metadata(rope_positions + 400)
    assert made.slots.tolist() == [70]
    assert int(made.positions) >= rope_positions


def test_ours_writes_no_key_from_behind_the_rope_table(plugin: None, layer: C4Layer) -> None:
    rope_positions = len(layer.indexer.compressor.fp4_cos)
    assert write_metadata(rope_positions + 400).slots.tolist() == [-1]
    assert write_metadata(rope_positions).slots.tolist() == [70]


def test_a_context_longer_than_the_rope_table_is_a_failed_start() -> None:
    with pytest.raises(HookError, match="--context-length=8192: the model's RoPE table has 4096 positions"):
        limits.check(config(context_len=8192), IndexPath(c4=True))


# Weights that kernels read a derived form of


class Model(nn.Module):
    def __init__(self, indexer: nn.Module) -> None:
        super().__init__()
        self.indexer = indexer


def updated(layer: C4Layer) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mirror and bias after a direct update, and what a loader makes of the same weights."""
    compressor = layer.indexer.compressor
    generator = torch.Generator().manual_seed(3)
    norm = torch.rand(128, generator=generator) + 0.5
    ape = torch.randn(compressor.ape.shape, generator=generator)
    named = [("indexer.compressor.norm.weight", norm), ("indexer.compressor.ape", ape)]
    weight_updater._model_load_weights_direct(Model(layer.indexer), named)
    mirror, bias = compressor.norm.fp4_weight_bf16.clone(), compressor.ape.data.clone()
    compressor.load_norm_weight(compressor.norm.weight, norm)
    compressor.load_ape_weight(compressor.ape, ape)
    return mirror, bias, compressor.norm.fp4_weight_bf16, compressor.ape.data


def test_upstream_leaves_the_derived_weights_behind_a_direct_update(layer: C4Layer) -> None:
    mirror, bias, right_mirror, right_bias = updated(layer)
    assert not torch.equal(mirror, right_mirror)
    assert not torch.equal(bias, right_bias)


def test_ours_derives_them_again(layer: C4Layer, plugin: None) -> None:
    before = layer.indexer.compressor.norm.fp4_weight_bf16.data_ptr()
    mirror, bias, right_mirror, right_bias = updated(layer)
    assert torch.equal(mirror, right_mirror)
    assert torch.equal(bias, right_bias)
    assert layer.indexer.compressor.norm.fp4_weight_bf16.data_ptr() == before, "captured graphs read the old buffer"


def test_other_parameters_are_updated_as_before(layer: C4Layer, plugin: None) -> None:
    weight = torch.randn(layer.indexer.wq_b.weight.shape).to(torch.bfloat16)
    weight_updater._model_load_weights_direct(Model(layer.indexer), [("indexer.wq_b.weight", weight)])
    assert torch.equal(layer.indexer.wq_b.weight.data, weight)
    with pytest.raises(KeyError, match="vanished"):
        weight_updater._model_load_weights_direct(Model(layer.indexer), [("vanished", weight)])


# Readback of split pools


@pytest.mark.parametrize("method", ["get_index_k_fp4", "get_index_k_dequant"])
def test_upstream_cannot_read_a_split_pool(method: str) -> None:
    world = IndexWorld([40])
    with pytest.raises(TypeError, match="'NoneType' object is not subscriptable"):
        getattr(world.pool, method)(0, world.slots(0, 40))


@pytest.mark.parametrize("kind", ["c4", "low_ratio", "page8"])
def test_ours_reads_keys_and_codes_of_every_layout(plugin: None, kind: Kind) -> None:
    world = IndexWorld([40], kind)
    slots = world.slots(0, 40)
    keys = world.pool.get_index_k_dequant(0, slots)
    assert keys.dtype == torch.bfloat16
    assert torch.equal(keys.double(), torch.from_numpy(world.keys[0]))
    codes, scales = world.pool.get_index_k_fp4(0, slots)
    assert (codes.dtype, codes.shape, scales.dtype, scales.shape) == (torch.int8, (40, 64), torch.int32, (40,))
    low = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).double()
    first = codes.view(torch.uint8)[:, 0].long() & 15
    value = torch.where(first >= 8, -low[first % 8], low[first % 8]) * torch.exp2((scales & 255).double() - 127)
    assert torch.equal(value, keys[:, 0].double())
    everything = world.pool.get_index_k_dequant(0)
    assert torch.equal(everything[slots[0]], keys[0])


def test_a_fused_pool_is_read_by_the_engine(plugin: None) -> None:
    world = IndexWorld([1])
    pool = world.pool
    pool.uses_aiter_fp4_layout = False
    pool.index_k_with_scale_buffer = [torch.full((2, 64 * 68), 127, dtype=torch.uint8)]
    codes, scales = pool.get_index_k_fp4(0, torch.tensor([3]))
    assert codes.tolist() == [[127] * 64]
    assert scales.tolist() == [0x7F7F7F7F]


# Scores past the pooled block


def test_upstream_allocates_past_the_block_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hip, "_LOGITS_BUDGET_ELEMS", 100)
    before = counters.snapshot().fallbacks
    with caplog.at_level(logging.DEBUG):
        first = hip._alloc_logits(2, 64, torch.device("cpu"), False)
        second = hip._alloc_logits(2, 64, torch.device("cpu"), False)
    assert first.data_ptr() != second.data_ptr()
    assert (counters.snapshot().fallbacks, caplog.text) == (before, "")


def test_ours_counts_them_and_warns_once(
    plugin: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hip, "_LOGITS_BUDGET_ELEMS", 100)
    monkeypatch.setattr(hip, "_LOGITS_POOL", {})
    key = ("paged_logits", "logits past the pooled block")
    before = counters.snapshot().fallbacks.get(key, 0)
    with caplog.at_level(logging.WARNING, fixes.__name__):
        for rows in (1, 2, 2):
            hip._alloc_logits(rows, 64, torch.device("cpu"), False)
        hip._alloc_logits(2, 64, torch.device("cpu"), True)
    assert counters.snapshot().fallbacks[key] == before + 2
    assert caplog.text.count("2 rows of 64 scores exceed SGLANG_DSV4_FP4_LOGITS_BUDGET_MB") == int(before == 0)


def test_a_block_that_holds_no_row_is_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DSV4_FP4_LOGITS_BUDGET_MB", "1")
    longest = config(max_position_embeddings=1 << 21, context_len=1 << 20)
    limits.check(longest, IndexPath(c4=True))
    with pytest.raises(HookError, match=r"BUDGET_MB=1: a row of 1048576 keys takes 4 MiB; accepted is at least that"):
        limits.check(longest, IndexPath(low_ratio=True))
