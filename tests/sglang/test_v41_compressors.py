"""Our compressors in the place of SGLang's fused ones: SGLang's calls of them, in its own pools and rings of pairs.

Decode, verified drafts and prefill chunks each store what the straight-line model makes of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sglang.srt.model_executor.forward_batch_info import ForwardMode

import v41_compressor
import v41_oracle
import v41_world
from dsv4_kernels import backends
from v41_world import RATIOS, SOURCES, V41World

LENGTHS, DRAFTS = [301, 252], 6
"""Committed tokens: an open pair, and drafts that cross into a second page."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[V41World]:
    v41_world.install(monkeypatch)
    v41_compressor.install(monkeypatch)
    with v41_world.world_of(tmp_path, LENGTHS, DRAFTS, fused=True) as made:
        yield made


@pytest.fixture(params=["reference", "portable"])
def kernels(world: V41World, request: pytest.FixtureRequest) -> Iterator[str]:
    """What compresses in the steps: the reference in torch, or the Triton kernels in the interpreter."""
    with backends.stand_in(backends.load(request.param)):
        yield request.param


def check(world: V41World, lengths: list[int]) -> None:
    for source in SOURCES:
        for request, length in enumerate(lengths):
            keys, entries = v41_oracle.made(world, source, request, length)
            slots = world.entry_slots(request, RATIOS[source], len(keys))
            v41_oracle.nearly_all_equal(v41_oracle.stored_keys(world, source, slots), keys)
            v41_oracle.nearly_all_equal(v41_oracle.stored_entries(world, source, slots), entries)


def step(world: V41World, batch: object) -> None:
    made = world.backend()
    made.init_forward_metadata(batch)
    for source in SOURCES:
        world.run(made, source, batch, run_indexer=False)


def test_verified_drafts_then_a_decode_step_behind_those_accepted(world: V41World, kernels: str) -> None:
    step(world, world.verify(DRAFTS))
    check(world, [n + DRAFTS for n in LENGTHS])
    # Two drafts are accepted, four are not: the ring still has the pair's first token where it is open.
    step(world, world.batch(ForwardMode.DECODE, 1, [n + 3 for n in LENGTHS]))
    check(world, [n + 3 for n in LENGTHS])


def test_prefill_chunks(world: V41World, kernels: str) -> None:
    """A chunk that starts with a pair's second token, and one longer than the ring; then the pair that it opened."""
    step(world, world.extend(range(2), [299, 232]))
    check(world, LENGTHS)
    step(world, world.batch(ForwardMode.DECODE, 1, [n + 1 for n in LENGTHS]))
    check(world, [n + 1 for n in LENGTHS])
