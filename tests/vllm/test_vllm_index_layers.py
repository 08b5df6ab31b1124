"""vLLM's ROCm index layers, unmodified, over our functions: what they select is what an oracle of their words does."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.config import CUDAGraphMode, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rocm_paged_mxfp4_indexer import RocmSparseAttnIndexer, RocmSparseMQAIndexer
from vllm.v1.attention.backends.mla import indexer as gates
from vllm.v1.attention.backends.mla.rocm_paged_mxfp4_indexer import plan_gather_launches

import vllm_index_world as world
from dsv4_kernels import layout

V4 = world.Model(topk=32, context=2048)
V4_WIDE = world.Model(heads=32, topk=32, context=2048)
V4_DRAFTS = world.Model(topk=32, context=2048, next_n=3)
V41 = world.Model("deepseek_v41", heads=32, ratio=1, block=128, topk=32, context=1024, candidates=4)
V41_HALF = world.Model("deepseek_v41", heads=32, ratio=2, block=128, topk=32, context=1024, candidates=4)
V41_GATHERS = world.Model(
    "deepseek_v41", heads=32, ratio=1, block=128, topk=16, context=1024, candidates=4, gathers=True
)


Queries = tuple[Tensor, Tensor, Tensor]
"""Codes, scales and weights as `Layer.queries` makes them."""


@pytest.fixture(autouse=True)
def plugin() -> Iterator[None]:
    world.compiled()
    with world.registered():
        yield


class Scene:
    """Two requests on shuffled pages of one layer, and vLLM's builder."""

    def __init__(self, model: world.Model) -> None:
        self.model = model
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
        return self.builder.build(0, world.step(self.model, lengths, queries, self.table, slots)), positions

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


@pytest.mark.parametrize("model", [V4, V4_WIDE, V41, V41_HALF], ids=["64 heads", "32 heads", "pages of 128", "ratio 2"])
def test_prefill_and_decode_select_the_best_keys(model: world.Model) -> None:
    scene = Scene(model)
    with world.launched() as counts:
        built, positions = scene.build([150, 421], [150, 421])
        buffer, queries = scene.selected(built, positions)
        check_rows(scene, buffer, queries, positions, {3: 0, 120: 0, 149: 0, 150: 1, 400: 1, 570: 1})
        built, positions = scene.build([151, 422], [1, 1])
        buffer, queries = scene.selected(built, positions)
        check_rows(scene, buffer, queries, positions, {0: 0, 1: 1})
    for op in ("write_index_keys", "quantize_query", "paged_logits"):
        assert counts[op, "prefill", "reference"] == 1
        assert counts[op, "decode", "reference"] == 1
    assert counts["topk", "prefill", "reference"] == 1


def test_a_step_of_prefill_and_decode_together() -> None:
    scene = Scene(V4)
    scene.selected(*scene.build([300, 200], [300, 200]))
    built, positions = scene.build([301, 400], [1, 200])
    assert built.decode is not None
    assert built.prefill is not None
    buffer, queries = scene.selected(built, positions)
    check_rows(scene, buffer, queries, positions, {0: 0, 1: 1, 100: 1, 200: 1})


def test_drafts_share_one_schedule_a_step_in_a_buffer_that_stays() -> None:
    scene = Scene(V4_DRAFTS)
    scene.selected(*scene.build([300, 500], [300, 500]))
    built, positions = scene.build([303, 503], [3, 3])
    schedule = built.decode_schedule
    assert schedule.tolist() == [0, 0, 0, 1, 1, 1]
    assert schedule.data_ptr() == scene.builder.decode_schedule_buffer.data_ptr()
    with world.launched() as counts:
        for seed in (0, 5):
            scene.layer.seed = seed
            buffer, queries = scene.selected(built, positions)
            check_rows(scene, buffer, queries, positions, {row: row // 3 for row in range(6)})
            assert built.decode_schedule is schedule
    assert counts["paged_logits", "verify", "reference"] == 2
    later, _ = scene.build([306, 506], [3, 3])
    assert later.decode_schedule.data_ptr() == schedule.data_ptr()


def test_rows_of_their_own_need_no_schedule() -> None:
    built, _ = Scene(V4).build([300, 500], [1, 1])
    assert built.decode_schedule is None


def test_a_flipped_page_or_scale_changes_what_is_selected() -> None:
    scene = Scene(V4)
    built, positions = scene.build([400, 500], [400, 500])
    before, queries = scene.selected(built, positions)
    scales = scene.layer.pages[int(scene.table[1, 0])].flatten()[64 * 64 :]
    scales[:4] = 140
    buffer = torch.empty_like(before)
    with world.forward({world.PREFIX: built}):
        run_dense(scene, buffer, queries)
    assert not torch.equal(buffer[400:], before[400:])
    assert torch.equal(buffer[:400], before[:400])
    swapped = built.prefill.chunks[0].block_table
    swapped[1, :2] = swapped[1, :2].flip(0)
    with world.forward({world.PREFIX: built}):
        run_dense(scene, buffer, queries)
    assert not torch.equal(buffer[400:], before[400:])


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


@pytest.mark.parametrize("decode", [False, True], ids=["prefill", "decode"])
def test_the_source_publishes_the_best_blocks_and_consumers_select_in_them(decode: bool) -> None:
    scene = Scene(V41_GATHERS)
    lengths = [300, 421]
    at = Candidates(scene, lengths, lengths)
    rows = {40: 0, 299: 0, 700: 1}
    buffer, queries = scene.selected(at.built, at.positions, candidate_write=True, **at.of)
    if decode:
        at, rows = Candidates(scene, [301, 422], [1, 1]), {0: 0, 1: 1}
        buffer, queries = scene.selected(at.built, at.positions, candidate_write=True, **at.of)
    check_rows(scene, buffer, queries, at.positions, rows)
    codes, scales, weights = queries
    for row, request in rows.items():
        seen = int(at.positions[row]) + 1
        keys = scene.layer.keys(scene.table[request], seen)
        scores = world.expected_scores(codes[row], scales[row].view(torch.uint8).view(-1, 4), weights[row], keys)
        best = torch.stack([part.max() for part in torch.split(scores, 8)])
        assert sorted(b for b in at.blocks[row].tolist() if b >= 0) == world.expected_top(best, 4)
    # Over a context of prefill vLLM masks with a kernel that refuses tensors of a CPU.
    for gathers in (False, True) if decode else (True,):
        got = consume(at, queries, gathers)
        check_consumer(at, got, queries, rows)
    if decode:
        poison_others(at)
        assert torch.equal(consume(at, queries, gathers=True), got)


def poison_others(at: Candidates) -> None:
    """The scales of every key outside the rows' candidates become NaN."""
    entries, kept = at.scene.model.entries, set()
    for row in range(len(at.positions)):
        kept |= {(int(at.scene.table[row, p // entries]), p % entries) for p in at.allowed(row)}
    pages = at.scene.layer.pages
    of = layout.RECORD68_P128
    for page in range(len(pages)):
        others = [o for o in range(entries) if (page, o) not in kept]
        pages[page].flatten()[of.scale_offsets(torch.tensor(others)).flatten()] = 255


def consume(at: Candidates, queries: Queries, gathers: bool) -> Tensor:
    """A consumer layer: the pool alone where vLLM gathers (always in a full graph), else the masked context."""
    scene = at.scene
    model = scene.model
    k_cache = SimpleNamespace(prefix=world.PREFIX, kv_cache=scene.layer.pages, compress_ratio=model.ratio)
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
