"""Logits by the portable kernel for every layout: within 2e-6 of float64.

Not collected by name: `test_kernels_portable.py` runs this file in a process of its own with TRITON_INTERPRET=1, which
Triton reads when it is imported. On a machine with a GPU: `python -m pytest tests/kernels/portable_logits_cases.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import candidate_gather
import logits_scoring
from dsv4_kernels import ops, portable, reference
from dsv4_kernels.layout import LAYOUTS
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_kernels.portable import logits as portable_logits
from logits_scoring import POISON
from portable_device import COMPILED, DEVICE, ints

# The interpreter computes with numpy, which warns where a GPU silently gives inf or NaN.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def _exact_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for sm90 round; `portable_sm90_cases.py` is theirs."""
    monkeypatch.setattr(portable_logits, "_sm90_serves", lambda _device: False)


class Scoring(logits_scoring.Scoring):
    def __init__(
        self,
        layout: str,
        rows: int,
        heads: int,
        tokens: int = 512,
        octaves: int = 6,
        gap: int = 0,
        hadamard: bool = True,
    ) -> None:
        spec = IndexSpec.named(layout, hadamard=hadamard)
        pages = tokens // spec.layout.page_slots
        seed = rows * 131 + heads
        super().__init__(rows, heads, pages=pages, octaves=octaves, gap=gap, seed=seed, spec=spec, device=DEVICE)

    def check(
        self, table: Tensor, ends: Tensor, width: int, seqs: Tensor | None = None, starts: Tensor | None = None
    ) -> None:
        """Within 2e-6 of float64 where a row sees a key; nothing is written elsewhere."""
        allocated = torch.full((self.query.rows, width + 8), POISON, device=DEVICE)
        call = self.call(table, ends, width, seqs=seqs, starts=starts)
        portable.paged_logits(replace(call, out=allocated[:, :width]))
        self.compare(allocated[:, :width], self.exact(table, ends, width, seqs=seqs, starts=starts))
        assert bool((allocated[:, width:] == POISON).all())


@pytest.mark.parametrize(
    ("layout", "heads"), [("split64", 64), ("split64", 32), ("split8", 32), ("record68", 16), ("fused_cuda", 48)]
)
def test_decode(layout: str, heads: int) -> None:
    case = Scoring(layout, rows=5, heads=heads)
    page = case.spec.layout.page_slots
    case.check(case.tables(5, 320 // page), ints(0, 1, 63, 64, 257), 320)


@pytest.mark.parametrize("layout", ["split128", "record68_n16", "record68_p128"])
def test_decode_in_a_strided_pool_with_scales_over_forty_octaves(layout: str) -> None:
    case = Scoring(layout, rows=2, heads=64, octaves=20, gap=4096, hadamard=False)
    case.check(case.tables(2, 256 // case.spec.layout.page_slots), ints(200, 65), 256)


@pytest.mark.parametrize("heads", [16, 32, 64, 128])
def test_rows_of_a_sequence_in_groups_that_do_not_divide(heads: int) -> None:
    case = Scoring("split64", rows=11, heads=heads)
    seqs = ints(0, 0, 0, 0, 0, 2, 1, 1, 1, 1, 1)
    case.check(case.tables(3, 4), ints(0, 1, 2, 64, 65, 200, 0, 0, 70, 71, 130), 256, seqs)


@pytest.mark.parametrize(
    ("layout", "heads"), [("record68", 64), ("record68", 32), ("record68_n16", 16), ("record68_p128", 64)]
)
def test_candidate_blocks_are_gathered_and_nothing_else_counts(layout: str, heads: int) -> None:
    """Keys outside the candidates are NaN; rows of one sequence may share a table too."""
    lengths, slots = [300, 65, 0, 512], LAYOUTS[layout].page_slots
    case = Scoring(layout, rows=4, heads=heads, tokens=2048, gap=4096)
    pages, ends = case.tables(4, 512 // slots), ints(*lengths)
    blocks = candidate_gather.random_blocks(lengths, 12).to(DEVICE)
    table = ops.candidate_table(blocks, ends, pages, page_slots=slots)
    dense = case.exact(pages, ends, 512)
    kept = candidate_gather.slots(blocks, pages, slots)
    others = torch.ones(case.pool.tokens, dtype=torch.bool, device=DEVICE)
    others[kept] = False
    at = case.spec.layout.scale_offsets(others.nonzero().flatten(), case.pool.payload_stride)
    case.pool.payload.as_strided((int(at.max()) + 1,), (1,))[at.flatten()] = 255
    exact = candidate_gather.gathered(dense, blocks, ends)
    for backend, accumulate in ((portable, torch.float32), (reference, torch.float64)):
        call = case.call(table.pages, table.lengths, 96, accumulate=accumulate)
        got = backend.paged_logits(replace(call, table_slots=8))
        for row, seen in enumerate(table.lengths.tolist()):
            largest = float(exact[row, :seen].abs().max()) if seen else 0.0
            torch.testing.assert_close(got[row, :seen], exact[row, :seen], rtol=0, atol=2e-6 * largest)
    call = case.call(table.pages, ints(70, 9, 5, 96), 96, seqs=ints(3, 3, 3, 3))
    together = replace(call, table_slots=8)
    shared = portable.paged_logits(together)
    alone = portable.paged_logits(replace(together, row_to_seq=None, page_table=table.pages[[3] * 4]))
    for row, seen in enumerate((70, 9, 5, 96)):
        assert torch.equal(shared[row, :seen], alone[row, :seen])


def test_windows() -> None:
    case = Scoring("split64", rows=6, heads=32)
    starts = ints(0, 63, 64, 100, 255, 7)
    case.check(case.tables(2, 4), ints(256, 64, 65, 90, 256, 255), 256, ints(0, 0, 0, 0, 0, 1), starts)
    case.check(case.tables(6, 4), ints(256, 64, 65, 90, 256, 255), 256, None, starts)


def test_table_entries_past_the_length_may_be_anything() -> None:
    case = Scoring("split64", rows=2, heads=16)
    table = torch.full((2, 9), -(2**31), dtype=torch.int32, device=DEVICE)
    table[:, :2] = case.tables(2, 2)
    case.check(table[:, 1:8], ints(64, 1), 448)


def test_keys_that_are_not_finite_select_no_index_out_of_range() -> None:
    case = Scoring("split64", rows=1, heads=16)
    case.pool.scale.view(-1)[10] = 255
    table, ends = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE), ints(64)
    logits = portable.paged_logits(case.call(table, ends, 64))
    assert int((~torch.isfinite(logits)).sum()) == 1
    assert sorted(portable.topk(logits, ends, 64, False)[0].tolist()) == list(range(64))


@pytest.mark.skipif(not COMPILED, reason="needs more than 4 GiB of touched memory and a compiled kernel")
def test_pages_past_four_gibibytes() -> None:
    case, first = Scoring("split64", rows=2, heads=64), 2**20
    table, ends = case.tables(2, 4), ints(256, 77)
    near = portable.paged_logits(case.call(table, ends, 256))
    large = IndexPool.allocate(case.spec, first + case.pool.pages, DEVICE)
    for name, tensor in large.tensors.items():
        tensor[first:] = case.pool.tensors[name]
    case.pool = large
    far = portable.paged_logits(case.call(table + first, ends, 256))
    for row, end in enumerate(ends.tolist()):
        assert torch.equal(near[row, :end], far[row, :end])
