"""Records past 2, 4 and 4.6 GB of a pool shared with other layers: scores, candidates and keys, on the emulator."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import candidate_gather
import gfx950_scoring
import logits_scoring
from dsv4_kernels import backends, ops, portable, reference
from dsv4_kernels.pool import IndexPool, IndexSpec
from gfx950_emulator import active, sparse_tensor

GAP, OFFSET = 4096, 1024
DISTANCES = [2.0e9, 2**31, 4.2e9, 2**32, 4.6e9]
"""Bytes to the first of the pages in use, or a little less; only what is touched is resident."""
NAMES = ["record68", "record68_p128"]
PAGES = 8


def far(near: IndexPool, distance: float) -> tuple[IndexPool, int]:
    """A pool with `near`'s pages as its last, and the number of the first of these: it straddles `distance`."""
    size = near.spec.layout.payload_spec.bytes_per_page
    stride = size + GAP
    first = int(distance) // stride - PAGES // 2
    memory = sparse_tensor(OFFSET + (first + PAGES) * stride, poisoned=False)
    view = memory.as_strided((first + PAGES, size), (stride, 1), OFFSET)
    view[first:] = near.payload
    return IndexPool(near.spec, {"pages": view}), first


def scoring(name: str) -> gfx950_scoring.Scoring:
    spec = IndexSpec.named(name, "deepseek", hadamard=False)
    made = gfx950_scoring.Scoring(2, 32, pages=PAGES, gap=GAP, spec=spec)
    made.weights = made.weights.float()
    return made


@pytest.mark.parametrize("backend", ["portable", "gfx950", "gfx950_plain"])
@pytest.mark.parametrize("name", NAMES)
def test_scores_of_far_pages_and_of_candidates_in_them(name: str, backend: str) -> None:
    case = scoring(name)
    slots = case.pool.spec.layout.page_slots
    table, ends = case.tables(2, 4), logits_scoring.ints(4 * slots, 150)
    width = 4 * slots
    blocks = candidate_gather.random_blocks(ends.tolist(), 10)
    dense = case.exact(table, ends, width)
    few = candidate_gather.gathered(dense, blocks, ends)
    near = case.pool
    for distance in DISTANCES:
        case.pool, first = far(near, distance)
        gather = ops.candidate_table(blocks, ends, table + first, page_slots=slots)
        calls = (
            (case.call(table + first, ends, width), dense),
            (replace(case.call(gather.pages, gather.lengths, 80), table_slots=8), few),
        )
        for call, exact in calls:
            out = torch.full(exact.shape, logits_scoring.POISON)
            with active():
                backends.load(backend).paged_logits(replace(call, out=out))
            case.compare(out, exact)


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_written_to_far_pages_and_nowhere_else(name: str) -> None:
    spec = IndexSpec.named(name, "deepseek", hadamard=False)
    keys = torch.randn(4, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    angle = torch.linspace(0, 3, 4)[:, None] * torch.linspace(1, 0.1, 32)
    rest = torch.linspace(0.5, 2, 128), 1e-6, angle.cos(), angle.sin(), torch.arange(4)
    slots = torch.tensor([0, 70, 300, PAGES * spec.layout.page_slots - 1])
    known = IndexPool.allocate(spec, PAGES)
    reference.write_index_keys(known, keys, *rest, slots)
    for distance in DISTANCES:
        pool, first = far(IndexPool.allocate(spec, PAGES), distance)
        with active():
            portable.write_index_keys(pool, keys, *rest, slots + first * spec.layout.page_slots)
        assert torch.equal(pool.payload[first:], known.payload)
        gaps = pool.payload.as_strided((pool.pages - 1, GAP), (pool.payload_stride, 1), OFFSET + pool.payload.shape[1])
        assert not bool(gaps[first:].any())
