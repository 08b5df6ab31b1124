"""vLLM's layers over the gfx950 code objects themselves: compiled ahead of time, executed by the emulator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import emulated_gfx950
import vllm_index_world as world
from dsv4_kernels import backends, registry
from dsv4_kernels.gfx950 import compiled
from dsv4_kernels.registry import LogitsShape
from dsv4_serve.engines.vllm import routes
from index_scene import Candidates, Scene, check_consumer, check_rows, consume

V4 = world.Model(topk=32, context=1024)
GATHERS = world.Model("deepseek_v41", heads=32, ratio=1, block=128, topk=16, context=512, candidates=4, gathers=True)
SHAPES = (
    LogitsShape(64, "record68", float_weights=True),
    LogitsShape(32, "record68_p128", float_weights=True),
    LogitsShape(32, "record68_p128", float_weights=True, blocks=True),
)
NAMES = [v.name for shape in SHAPES for v in registry.logits_variants(shape) if v.fast]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> emulated_gfx950.EmulatedKernels:
    return emulated_gfx950.EmulatedKernels(emulated_gfx950.build(tmp_path_factory.mktemp("kernels"), NAMES))


@pytest.fixture(autouse=True)
def served(kernels: emulated_gfx950.EmulatedKernels, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The plugin asks for gfx950, which answers its known questions in every shape before it serves."""
    monkeypatch.setenv("DSV4_BACKEND", "gfx950")
    monkeypatch.setattr(compiled, "_active", kernels)
    world.compiled()
    kernels.names.clear()
    with world.registered():
        yield
    monkeypatch.undo()
    backends.activate("cpu", "reference")


def test_prefill_and_decode(kernels: emulated_gfx950.EmulatedKernels) -> None:
    scene = Scene(V4)
    found = routes.current()
    assert found is not None
    assert {s.op: s.selected for s in backends.selections("cpu")}["paged_logits"] == "gfx950"
    with world.launched() as counts:
        built, positions = scene.build([90, 301], [90, 301])
        buffer, queries = scene.selected(built, positions)
        check_rows(scene, buffer, queries, positions, {3: 0, 89: 0, 90: 1, 390: 1})
        built, positions = scene.build([91, 302], [1, 1])
        buffer, queries = scene.selected(built, positions)
        check_rows(scene, buffer, queries, positions, {0: 0, 1: 1})
    assert counts["paged_logits", "prefill", "gfx950"] == counts["paged_logits", "decode", "gfx950"] == 1
    assert kernels.names[-2:] == [
        "paged_logits_h64_r2_record68_w32_shared_fast",
        "paged_logits_h64_r1_record68_w32_fast",
    ]


def test_consumers_gather_their_candidates(kernels: emulated_gfx950.EmulatedKernels) -> None:
    scene = Scene(GATHERS)
    at = Candidates(scene, [100, 221], [100, 221])
    scene.selected(at.built, at.positions, candidate_write=True, **at.of)
    at = Candidates(scene, [101, 222], [1, 1])
    _, queries = scene.selected(at.built, at.positions, candidate_write=True, **at.of)
    kernels.names.clear()
    got = consume(at, queries, gathers=True)
    assert kernels.names == ["paged_logits_h32_r1_record68_p128_blocks_w32_fast"]
    check_consumer(at, got, queries, {0: 0, 1: 1})
    assert got.dtype is torch.int32
