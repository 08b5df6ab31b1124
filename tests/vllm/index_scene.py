"""Two requests on shuffled pages of one index layer of vLLM's, its builder, and what may be selected."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from vllm.config import CUDAGraphMode, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rocm_paged_mxfp4_indexer import RocmSparseAttnIndexer, RocmSparseMQAIndexer
from vllm.v1.attention.backends.mla import indexer as gates
from vllm.v1.attention.backends.mla.rocm_paged_mxfp4_indexer import plan_gather_launches

import vllm_index_world as world

Queries = tuple[Tensor, Tensor, Tensor]
"""Codes, scales and weights as `Layer.queries` makes them."""


class Scene:
    """Two requests on shuffled pages of one layer, and vLLM's builder."""

    def __init__(self, model: world.Model) -> None:
        self.model = model
        self.step: Callable[..., Any] = world.step
        assert gates.dsa_indexer_uses_fp4(model.config())
        self.builder = model.builder()
        blocks = -(-model.context // model.block)
        order = torch.randperm(2 * blocks, generator=torch.Generator().manual_seed(9)).int()
        self.table = order.view(2, blocks)
        self.layer = world.Layer(model, world.page_view(model, 2 * blocks))

    def build(self, lengths: list[int], queries: list[int]) -> tuple[Any, Tensor]:
        """(metadata, positions) of a step; slots as vLLM's runner computes them."""
        positions = torch.cat([torch.arange(n - q, n) for n, q in zip(lengths, queries, strict=True)])
        rows = torch.repeat_interleave(torch.arange(2), torch.tensor(queries))
        block = self.model.block
        slots = self.table[rows, positions // block].long() * block + positions % block
        return self.builder.build(0, self.step(self.model, lengths, queries, self.table, slots)), positions

    def selected(self, built: Any, positions: Tensor, **layer: Any) -> tuple[Tensor, Queries]:
        """int32 [T, k] of vLLM's layer, and the queries that it scored."""
        with world.forward({world.PREFIX: built}):
            self.layer.store(positions, built.slot_mapping)
            queries = self.layer.queries(positions)
            buffer = torch.full((len(positions), self.model.topk), -7, dtype=torch.int32)
            run_dense(self, buffer, queries, **layer)
        return buffer, queries


def run_dense(scene: Scene, buffer: Tensor, queries: Queries, **layer: Any) -> None:
    model = scene.model
    k_cache = SimpleNamespace(prefix=world.PREFIX, kv_cache=scene.layer.pages, compress_ratio=model.ratio)
    width = model.context // model.ratio
    with set_current_vllm_config(VllmConfig()):
        made = RocmSparseAttnIndexer(
            k_cache, 32, "ue8m0", model.topk, 128, width, width, buffer, True, True, model.ratio, **layer
        )
    hidden = torch.empty(len(buffer), 1)
    assert made.forward_hip(hidden, (queries[0], queries[1]), None, queries[2]) is buffer


def check_rows(scene: Scene, buffer: Tensor, queries: Queries, positions: Tensor, rows: dict[int, int]) -> None:
    """`rows`: query row -> request. A row's selection has the best scores that the oracle knows, each key once."""
    codes, scales, weights = queries
    for row, request in rows.items():
        seen = (int(positions[row]) + 1) // scene.model.ratio
        keys = scene.layer.keys(scene.table[request], seen)
        scores = world.expected_scores(codes[row], scales[row].view(torch.uint8).view(-1, 4), weights[row], keys)
        got = buffer[row][buffer[row] >= 0].long()
        best = world.expected_top(scores, scene.model.topk)
        assert len(got) == len(set(got.tolist())) == len(best)
        torch.testing.assert_close(scores[got].sort().values, scores[best].sort().values, rtol=1e-5, atol=1e-6)
        assert bool((buffer[row].sort().values[: scene.model.topk - len(best)] == -1).all())


class Candidates:
    """V4.1's source layer, which publishes blocks, and what its rows may select."""

    def __init__(self, scene: Scene, lengths: list[int], queries: list[int]) -> None:
        self.scene = scene
        self.built, self.positions = scene.build(lengths, queries)
        self.blocks = torch.full((len(self.positions), scene.model.candidates), -7, dtype=torch.int32)
        self.of = {"candidate_blocks": self.blocks, "candidate_block_size": 8}

    def allowed(self, row: int) -> list[int]:
        seen = (int(self.positions[row]) + 1) // self.scene.model.ratio
        return sorted(b * 8 + i for b in self.blocks[row].tolist() if b >= 0 for i in range(8) if b * 8 + i < seen)


def check_consumer(at: Candidates, buffer: Tensor, queries: Queries, rows: dict[int, int]) -> None:
    codes, scales, weights = queries
    for row, request in rows.items():
        allowed = at.allowed(row)
        keys = at.scene.layer.keys(at.scene.table[request], (int(at.positions[row]) + 1) // at.scene.model.ratio)
        scores = world.expected_scores(codes[row], scales[row].view(torch.uint8).view(-1, 4), weights[row], keys)
        got = sorted(x for x in buffer[row].tolist() if x >= 0)
        assert set(got) <= set(allowed)
        assert len(got) == min(len(allowed), at.scene.model.topk)
        best = [allowed[i] for i in world.expected_top(scores[allowed], at.scene.model.topk)]
        torch.testing.assert_close(scores[got].sort().values, scores[best].sort().values, rtol=1e-5, atol=1e-6)


def consume(at: Candidates, queries: Queries, gathers: bool, buffer: Tensor | None = None) -> Tensor:
    """A consumer layer: the pool alone where vLLM gathers (always in a full graph), else the masked context."""
    scene = at.scene
    model = scene.model
    k_cache = SimpleNamespace(prefix=world.PREFIX, kv_cache=scene.layer.pages, compress_ratio=model.ratio)
    if buffer is None:
        buffer = torch.full((len(at.positions), model.topk), -7, dtype=torch.int32)
    config: Any = VllmConfig()
    config.model_config = SimpleNamespace(max_model_len=model.context)
    with set_current_vllm_config(config):
        made = RocmSparseMQAIndexer(k_cache, model.topk, 128, model.context, buffer, at.blocks, 8)
    for plan in at.built.prefill_plans:
        plan.use_gather = gathers
    if at.built.prefill is not None:
        at.built.gather_launches = (
            plan_gather_launches(at.built.prefill.chunks, at.built.prefill_plans, 256) if gathers else []
        )
    mode = CUDAGraphMode.FULL if gathers else CUDAGraphMode.NONE
    with world.forward({world.PREFIX: at.built}, mode):
        made(torch.empty(len(buffer), 1), (queries[0], queries[1]), None, queries[2])
    return buffer
