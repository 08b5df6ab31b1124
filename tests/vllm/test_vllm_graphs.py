"""A decode step of vLLM's layers as a graph would have it: captured at one length, replayed at others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.config import CUDAGraphMode

import graph_replay
import vllm_index_world as world
from dsv4_serve.engines.vllm import launcher
from index_scene import Candidates, Scene, check_consumer, check_rows, consume, run_dense

V4 = world.Model(topk=32, context=2048)
DRAFTS = world.Model(topk=32, context=2048, next_n=3)
GATHERS = world.Model("deepseek_v41", heads=32, ratio=1, block=128, topk=16, context=1024, candidates=4, gathers=True)


@pytest.fixture(autouse=True)
def plugin() -> Iterator[None]:
    world.compiled()
    with world.registered():
        yield


class Persistent:
    """Steps whose lengths stand in one buffer, as the engine's runner keeps them for its graphs."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.lengths = torch.zeros(2, dtype=torch.int32)
        make = scene.step

        def step(*args: Any) -> Any:
            made = make(*args)
            self.lengths.copy_(made.seq_lens)
            return replace(made, seq_lens=self.lengths)

        scene.step = step


def addresses(built: Any) -> list[int]:
    held = (built.decode_row_lens, built.decode_schedule, built.decode.block_table, built.decode.seq_lens)
    return [t.data_ptr() for t in held if isinstance(t, Tensor)]


@pytest.mark.parametrize("model", [V4, DRAFTS], ids=["rows of their own", "drafts"])
def test_a_replay_follows_the_lengths_tables_and_queries_of_its_step(model: world.Model) -> None:
    scene = Scene(model)
    Persistent(scene)
    n = model.next_n
    scene.selected(*scene.build([300, 500], [300, 500]))
    built, positions = scene.build([300 + n, 500 + n], [n, n])
    first, queries = scene.selected(built, positions)
    buffer = torch.full_like(first, -7)
    with world.forward({world.PREFIX: built}, CUDAGraphMode.FULL), graph_replay.capture() as graph:
        run_dense(scene, buffer, queries)
    assert torch.equal(buffer, first)
    before = addresses(built)
    # The requests change places: other pages, lengths and queries in the same tensors.
    scene.table.copy_(scene.table.flip(0))
    for lengths in ([512, 301], [900, 44], [330, 690]):
        scene.selected(*scene.build(lengths, lengths))
        later, positions = scene.build([length + n for length in lengths], [n, n])
        assert addresses(later) == before
        scene.layer.seed = sum(lengths)
        expected, fresh = scene.selected(later, positions)
        for old, new in zip(queries, fresh, strict=True):
            old.copy_(new)
        graph.replay()
        assert torch.equal(buffer, expected)
        check_rows(scene, buffer, queries, positions, {row: row // n for row in range(2 * n)})


def test_one_schedule_is_built_a_step_and_every_layer_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(DRAFTS)
    Persistent(scene)
    scene.selected(*scene.build([300, 500], [300, 500]))
    made: list[Tensor | None] = []
    read: list[int] = []
    build, score = launcher.build_schedule, launcher.paged_mxfp4_mqa_logits

    def building(*args: Any, **kwargs: Any) -> Tensor | None:
        made.append(build(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(launcher, "build_schedule", building)

    def scored(*args: Any, **kwargs: Any) -> Tensor:
        read.append(kwargs["schedule"].data_ptr())
        return score(*args, **kwargs)

    monkeypatch.setattr(launcher, "paged_mxfp4_mqa_logits", scored)
    for step in range(2):
        built, positions = scene.build([303 + 3 * step, 503 + 3 * step], [3, 3])
        for layer in range(4):
            scene.layer.seed = layer
            buffer, queries = scene.selected(built, positions)
            check_rows(scene, buffer, queries, positions, {row: row // 3 for row in range(6)})
        assert len(made) == step + 1
    assert len(read) == 8
    assert set(read) == {scene.builder.decode_schedule_buffer.data_ptr()}


def test_a_replayed_consumer_gathers_the_candidates_of_its_step() -> None:
    """A full graph always gathers; the pool is made inside it, from the blocks that the source layer published."""
    scene = Scene(GATHERS)
    Persistent(scene)
    at = Candidates(scene, [300, 421], [300, 421])
    scene.selected(at.built, at.positions, candidate_write=True, **at.of)
    at = Candidates(scene, [301, 422], [1, 1])
    _, queries = scene.selected(at.built, at.positions, candidate_write=True, **at.of)
    buffer = torch.full((2, GATHERS.topk), -7, dtype=torch.int32)
    with graph_replay.capture() as graph:
        consume(at, queries, gathers=True, buffer=buffer)
    check_consumer(at, buffer, queries, {0: 0, 1: 1})
    for lengths in ([340, 430], [900, 64]):
        fill = Candidates(scene, lengths, lengths)
        scene.selected(fill.built, fill.positions, candidate_write=True, **fill.of)
        later = Candidates(scene, [n + 1 for n in lengths], [1, 1])
        scene.layer.seed = lengths[0]
        _, fresh = scene.selected(later.built, later.positions, candidate_write=True, **later.of)
        at.blocks.copy_(later.blocks)
        for old, new in zip(queries, fresh, strict=True):
            old.copy_(new)
        graph.replay()
        check_consumer(later, buffer, queries, {0: 0, 1: 1})
