"""Candidate blocks scored out of vLLM's records on the emulated gfx950: right, and nothing else of the pool is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import candidate_gather
import gfx950_scoring
import logits_scoring
from dsv4_kernels import backends, layout, ops
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec
from gfx950_emulator import active, mark_defined, sparse_tensor
from gfx950_emulator.machine.options import ORDERS, Order
from gfx950_emulator.session import Session

GAP = 4096
LENGTHS = [300, 65, 0, 512]
WHOLE = [304, 72, 0, 512]
"""Lengths whose newest block is full, so that every byte of a candidate is read."""
COUNT = 12
WIDTH = COUNT * candidate_gather.BLOCK
RECORDS = [("record68", 64), ("record68", 32), ("record68_n16", 16), ("record68_p128", 32), ("record68_p128", 64)]
BACKENDS = ["portable", "gfx950"]
LAUNCHED = [*((backend, order) for backend in BACKENDS for order in ORDERS), ("gfx950_plain", "lockstep")]
"""`plain` differs from `gfx950` in its arithmetic alone."""
NOT_A_NUMBER = 255
"""A scale byte that makes every score of its key NaN."""


class Case:
    """Rows over shuffled pages of a strided pool, and their candidate blocks."""

    def __init__(self, name: str, heads: int, lengths: list[int] = LENGTHS) -> None:
        spec = IndexSpec.named(name, "deepseek", hadamard=False)
        self.scoring = gfx950_scoring.Scoring(len(lengths), heads, pages=16, gap=GAP, spec=spec)
        self.scoring.weights = self.scoring.weights.float()
        self.slots = layout.layout(name).page_slots
        self.pages = self.scoring.tables(len(lengths), 512 // self.slots)
        self.lengths = logits_scoring.ints(*lengths)
        self.blocks = candidate_gather.random_blocks(lengths, COUNT)
        self.table = ops.candidate_table(self.blocks, self.lengths, self.pages, page_slots=self.slots)
        dense = self.scoring.exact(self.pages, self.lengths, 512)
        self.exact = candidate_gather.gathered(dense, self.blocks, self.lengths)

    def call(self) -> LogitsCall:
        call = self.scoring.call(self.table.pages, self.table.lengths, WIDTH)
        return replace(call, table_slots=candidate_gather.BLOCK)

    def candidate_bytes(self) -> tuple[Tensor, int]:
        """Offsets of every byte of the pool that the candidates hold, and the bytes from the first page on."""
        pool = self.scoring.pool
        of, stride = pool.spec.layout, pool.payload_stride
        at = torch.tensor(sorted(set(candidate_gather.slots(self.blocks, self.pages, self.slots).tolist())))
        offsets = [of.payload_offsets(at, stride).flatten(), of.scale_offsets(at, stride).flatten()]
        return torch.cat(offsets), (pool.pages - 1) * stride + of.payload_spec.bytes_per_page


def scored(case: Case, backend: str, order: Order = "lockstep", unique: bool = False) -> tuple[Tensor, Session]:
    out = torch.full((len(LENGTHS), WIDTH), logits_scoring.POISON)
    with active(order=order, track_unique=unique) as session:
        run: Callable[[LogitsCall], Tensor] = backends.load(backend).paged_logits
        run(replace(case.call(), out=out))
    assert len(session.launches) == 1
    assert session.launches[0].kernel.resources.scratch_bytes == 0
    return out, session


def moved(pool: IndexPool, memory: Tensor) -> IndexPool:
    """The pool over other bytes of the same order."""
    view = memory.as_strided(pool.payload.shape, pool.payload.stride())
    return IndexPool(pool.spec, {"pages": view})


@pytest.mark.parametrize(("backend", "order"), LAUNCHED)
@pytest.mark.parametrize(("name", "heads"), RECORDS)
def test_scores_of_candidate_blocks(name: str, heads: int, order: Order, backend: str) -> None:
    case = Case(name, heads)
    out, _ = scored(case, backend, order)
    case.scoring.compare(out, case.exact)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "heads"), RECORDS)
def test_keys_outside_the_candidates_are_never_read(name: str, heads: int, backend: str) -> None:
    """Their bytes are undefined, which ends a launch that uses them, and NaN; and the bytes that were read are told."""
    case = Case(name, heads, WHOLE)
    pool = case.scoring.pool
    offsets, size = case.candidate_bytes()
    memory = sparse_tensor(size)
    memory.fill_(NOT_A_NUMBER)
    memory[offsets] = pool.payload.as_strided((size,), (1,))[offsets]
    for word in set((offsets // 4).tolist()):
        mark_defined(memory[word * 4 : word * 4 + 4])
    case.scoring.pool = moved(pool, memory)
    out, session = scored(case, backend, unique=True)
    case.scoring.compare(out, case.exact)
    assert session.launches[0].unique_reads["payload_ptr"] == offsets.numel()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_candidate_s_scale_and_its_block_s_page_matter(backend: str) -> None:
    case = Case("record68_p128", 32)
    before, _ = scored(case, backend)
    page, block = divmod(int(case.table.pages[0, 0]), case.slots // candidate_gather.BLOCK)
    scale = case.scoring.pool.spec.layout.scale_offsets(torch.tensor([block * candidate_gather.BLOCK]))
    case.scoring.pool.payload[page, scale[0]] += 3
    after, _ = scored(case, backend)
    assert not torch.equal(after[0], before[0])
    entries = case.table.pages.clone()
    entries[3, :2] = entries[3, :2].flip(0)
    case.table = replace(case.table, pages=entries)
    swapped, _ = scored(case, backend)
    assert torch.equal(swapped[3, :16], after[3, :16].roll(8))
