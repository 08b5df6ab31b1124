"""vLLM's 68-byte records by the portable and the gfx950 kernels, executed on the emulator in three orders.

A workgroup of the gfx950 logits is one wave, so the orders of its waves differ for the portable kernels alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import gfx950_scoring
import logits_scoring
from dsv4_kernels import backends, portable, reference
from dsv4_kernels.pool import IndexPool, IndexSpec
from gfx950_emulator import active
from gfx950_emulator.machine.options import ORDERS, Order

GAP = 4096
RECORDS = [("record68", 64), ("record68", 32), ("record68_n16", 16), ("record68_p128", 32), ("record68_p128", 64)]
BACKENDS = ["portable", "gfx950"]
ENDS = logits_scoring.ints(200, 65, 0)


def scoring(name: str, heads: int) -> gfx950_scoring.Scoring:
    """Three rows with float32 weights, pages far apart."""
    spec = IndexSpec.named(name, "deepseek", hadamard=False)
    made = gfx950_scoring.Scoring(3, heads, pages=8, gap=GAP, spec=spec)
    made.weights = made.weights.float()
    return made


def scored(
    of: gfx950_scoring.Scoring, table: Tensor, backend: str, order: Order = "lockstep", seqs: Tensor | None = None
) -> Tensor:
    out = torch.full((3, 256), logits_scoring.POISON)
    with active(order=order) as session:
        backends.load(backend).paged_logits(replace(of.call(table, ENDS, 256, seqs=seqs), out=out))
    assert len(session.launches) == 1
    assert session.launches[0].kernel.resources.scratch_bytes == 0
    return out


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("backend", [*BACKENDS, "gfx950_plain"])
@pytest.mark.parametrize(("name", "heads"), RECORDS)
def test_scores_over_shuffled_pages(name: str, heads: int, order: Order, backend: str) -> None:
    case = scoring(name, heads)
    table = case.tables(3, 256 // case.pool.spec.layout.page_slots)
    case.compare(scored(case, table, backend, order), case.exact(table, ENDS, 256))
    seqs = logits_scoring.ints(1, 0, 0)
    case.compare(scored(case, table, backend, order, seqs), case.exact(table, ENDS, 256, seqs=seqs))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_shares_of_pages_of_128_begin_with_a_page(splits: int, fast: bool) -> None:
    spec = IndexSpec.named("record68_p128", "deepseek", hadamard=False)
    case = gfx950_scoring.Scoring(5, 32, pages=8, gap=GAP, spec=spec)
    ends, starts = logits_scoring.ints(1000, 129, 64, 65, 511), logits_scoring.ints(0, 100, 3, 64, 320)
    case.check(case.tables(5, 8), ends, 1024, splits=splits, fast=fast)
    seqs = logits_scoring.ints(0, 0, 0, 1, 1)
    case.check(case.tables(2, 8), ends, 1024, seqs=seqs, starts=starts, rows_per_wave=4, splits=splits, fast=fast)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["record68", "record68_p128"])
def test_a_flipped_page_or_scale_changes_the_scores(name: str, backend: str) -> None:
    case = scoring(name, 32)
    table = case.tables(3, 256 // case.pool.spec.layout.page_slots)
    before = scored(case, table, backend)
    swapped = table.clone()
    swapped[0, :2] = table[0, :2].flip(0)
    after = scored(case, swapped, backend)
    assert not torch.equal(after[0, :200], before[0, :200])
    assert torch.equal(after[1:], before[1:])
    slots = case.pool.spec.layout.page_slots
    case.pool.payload[int(table[0, 0]), slots * 64] += 3
    assert not torch.equal(scored(case, table, backend)[0, :200], before[0, :200])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["record68", "record68_n16", "record68_p128"])
def test_keys_are_written_as_the_reference_writes_them(name: str, order: Order) -> None:
    spec = IndexSpec.named(name, "deepseek", hadamard=False)
    slots = torch.tensor([5, 300, -1, 130, 64])
    angle = torch.linspace(0, 3, 7)[:, None] * torch.linspace(1, 0.1, 32)
    keys = torch.randn(5, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    arguments = keys, torch.linspace(0.5, 2, 128), 1e-6, angle.cos(), angle.sin(), torch.arange(5), slots
    size = spec.layout.payload_spec.bytes_per_page
    pages = [torch.full((8, size + GAP), 0xEE, dtype=torch.uint8) for _ in range(2)]
    ours, known = (IndexPool(spec, {"pages": whole[:, :size]}) for whole in pages)
    reference.write_index_keys(known, *arguments)
    with active(order=order):
        portable.write_index_keys(ours, *arguments)
    assert torch.equal(pages[0], pages[1])
