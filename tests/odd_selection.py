"""Selection and schedules of any shape, place and value: a backend against the reference on the CPU, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.dispatch import THRESHOLDS
from dsv4_kernels.implementation import Implementation
from odd_tensors import DENSE, Device, Place, generator, hard, placed, same


def _ints(values: tuple[int, ...] | Tensor, place: Place, device: Device) -> Tensor:
    return placed(torch.as_tensor(values, dtype=torch.int32), place, device)


@dataclass(frozen=True)
class Selection:
    """Calls of `topk`, `topk_slots` and `candidate_blocks` on rows of `columns` scores, of which `lengths` count."""

    columns: int
    lengths: tuple[int, ...]
    k: int
    by_position: bool = False
    page_slots: int = 64
    shared: bool = False
    logits: Place = DENSE
    table: Place = DENSE
    integers: Place = DENSE
    seed: int = 0

    def check(self, backend: Implementation, device: Device) -> None:
        results = [self._run(backend, device), self._run(reference, "cpu")]
        for name, got, want in zip(("topk", "topk_slots", "slots", "candidate_blocks"), *results, strict=True):
            assert same(got, want), name

    def _run(self, of: Implementation, device: Device) -> tuple[Tensor, ...]:
        dice, rows = generator(self.seed), len(self.lengths)
        logits = placed(hard(rows, self.columns, dice), self.logits, device)
        # What no row sees is the highest of all.
        for row, length in enumerate(self.lengths):
            logits[row, length:] = torch.inf
        lengths = _ints(self.lengths, self.integers, device)
        width = max(1, -(-self.columns // self.page_slots))
        table = _ints(torch.randint(0, 2**31 - 1, (rows, width), generator=dice), self.table, device)
        seqs = torch.randint(0, max(rows, 1), (rows,), generator=dice)
        where = _ints(seqs, self.integers, device) if self.shared else None
        return (
            of.topk(logits, lengths, self.k, self.by_position),
            *of.topk_slots(logits, lengths, self.k, table, where, self.page_slots, self.by_position),
            of.candidate_blocks(logits, lengths, self.k, THRESHOLDS.candidate_block),
        )


@dataclass(frozen=True)
class Schedules:
    """Calls of both schedules for rows of up to `longest` keys; `spare`: workgroups beyond one a row."""

    rows: int
    longest: int
    spare: int = 0
    integers: Place = DENSE
    seed: int = 0

    def check(self, backend: Implementation, device: Device) -> None:
        results = [self._run(backend, device), self._run(reference, "cpu")]
        for name, got, want in zip(("decode", "prefill"), *results, strict=True):
            assert same(got, want), name

    def _run(self, of: Implementation, device: Device) -> tuple[Tensor, ...]:
        dice = generator(self.seed)
        ends = torch.randint(0, self.longest + 1, (self.rows,), generator=dice)
        ends[torch.rand(self.rows, generator=dice) < 0.2] = 0
        starts = (ends * torch.rand(self.rows, generator=dice)).int()
        lengths, begins = _ints(ends, self.integers, device), _ints(starts, self.integers, device)
        seqs = _ints(torch.arange(self.rows) // 2, self.integers, device)
        ctas, chunk = self.rows + self.spare, THRESHOLDS.chunk
        return (
            of.decode_schedule(lengths, self.longest, ctas, chunk),
            of.prefill_schedule(seqs, begins, lengths, self.longest, ctas, chunk),
        )
