"""Paged logits of any shape and place: a backend against float64 of the reference on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.implementation import Implementation
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from odd_index import pool_of
from odd_tensors import DENSE, Device, Place, angles, generator, placed

SCALE = 0.0110485
UNSEEN = 12345.0


@dataclass(frozen=True)
class Logits:
    """Rows that see `lengths` keys, row by row; `seqs` and `starts` likewise where given.

    `entry`: keys that an entry of the table names, if fewer than a page. `gap`: of pages, in units of 16 bytes.
    """

    layout: str
    lengths: tuple[int, ...]
    heads: int = 16
    seqs: tuple[int, ...] | None = None
    starts: tuple[int, ...] | None = None
    entry: int | None = None
    pages: int = 6
    gap: int = 0
    spare_columns: int = 0
    weight_dtype: torch.dtype = torch.float32
    weights: Place = DENSE
    table: Place = DENSE
    integers: Place = DENSE
    out: Place = DENSE
    seed: int = 0

    def check(self, backend: Implementation, device: Device) -> None:
        self.check_scores(backend.paged_logits, device, 2e-6)

    def check_scores(self, score: Callable[[LogitsCall], Tensor], device: Device, tolerance: float) -> None:
        """`score` writes into the call's `out`. Errors are of a score, or of the mean of its row if that is more."""
        exact = reference.paged_logits(self._call("cpu", torch.float64, None))
        out = placed(torch.full(exact.shape, UNSEEN), self.out, device)
        score(self._call(device, torch.float32, out))
        got, seen = out.cpu(), torch.isfinite(exact)
        scale = exact.masked_fill(~seen, 0).abs().sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
        error = (got.double() - exact.double()).abs() / torch.maximum(exact.abs(), scale).double()
        assert float(error[seen].max() if seen.any() else 0) < tolerance
        assert bool((got[~seen] == UNSEEN).all()), "columns that no row sees"
        around = out.as_strided((out.untyped_storage().nbytes() // 4,), (1,), 0).clone()
        around.as_strided(tuple(out.shape), tuple(out.stride()), out.storage_offset()).fill_(torch.nan)
        assert bool(around.isnan().all()), "memory around the output"

    def _call(self, device: Device, accumulate: torch.dtype, out: Tensor | None) -> LogitsCall:
        spec, dice, rows = IndexSpec.named(self.layout), generator(self.seed), len(self.lengths)
        pool = pool_of(spec, self.pages, self.gap, "cpu")
        _fill(pool, dice)
        q = torch.randn(rows, self.heads, 128, generator=dice)
        positions = torch.zeros(rows, dtype=torch.int64)
        query = reference.quantize_query(q, *angles(1, torch.float32, (DENSE, DENSE), "cpu"), positions, spec)
        weights = torch.randn(rows, self.heads, generator=dice).to(self.weight_dtype)
        entry = self.entry or spec.layout.page_slots
        width = max(*self.lengths, 1) + self.spare_columns
        tables = rows if self.seqs is None else max(self.seqs, default=0) + 1
        table = torch.randint(0, pool.tokens // entry, (tables, -(-width // entry)), generator=dice).int()
        return LogitsCall(
            query=_on(query, device),
            pool=_pool_on(pool, self.pages, self.gap, device),
            weights=placed(weights, self.weights, device),
            page_table=placed(table, self.table, device),
            lengths=self._integers(self.lengths, device),
            weight_scale=SCALE,
            max_seq_len=width,
            row_to_seq=None if self.seqs is None else self._integers(self.seqs, device),
            starts=None if self.starts is None else self._integers(self.starts, device),
            accumulate=accumulate,
            table_slots=self.entry,
            out=out,
        )

    def _integers(self, values: tuple[int, ...], device: Device) -> Tensor:
        return placed(torch.tensor(values, dtype=torch.int32), self.integers, device)


def _fill(pool: IndexPool, dice: torch.Generator) -> None:
    """Normal keys, whose scales lie over some octaves."""
    slots = torch.arange(pool.tokens)
    weight = torch.exp2(torch.randint(-4, 5, (128,), generator=dice).float())
    k = torch.randn(pool.tokens, 128, generator=dice)
    none = angles(1, torch.float32, (DENSE, DENSE), "cpu")
    reference.write_index_keys(pool, k, weight, 0.0, *none, torch.zeros_like(slots), slots)


def _on(query: Query, device: Device) -> Query:
    assert query.payload is not None
    assert query.scale is not None
    return Query(query.spec, query.heads, payload=query.payload.to(device), scale=query.scale.to(device))


def _pool_on(pool: IndexPool, pages: int, gap: int, device: Device) -> IndexPool:
    there = pool_of(pool.spec, pages, gap, device)
    for name, tensor in pool.tensors.items():
        there.tensors[name].copy_(tensor)
    return there
