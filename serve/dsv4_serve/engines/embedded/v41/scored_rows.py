"""Rows of a batch that see more entries than they may choose: they are scored, in groups that share keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4_kernels.counters import Phase

from ..batch import ForwardBatch
from ..index_scope import Scope


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Batch rows `rows` int64 [n], which see `seen` int32 [n] entries, the most of them `longest`.

    `tables` int32 [S, P] are pages of context by sequence; row i is of sequence `sequences[i]` (int64 [n], ascending),
    or of sequence i without `sequences`.
    """

    phase: Phase
    rows: torch.Tensor
    seen: torch.Tensor
    tables: torch.Tensor
    sequences: torch.Tensor | None

    @property
    def longest(self) -> int:
        return int(self.seen.max())

    def scope(self, pages_of_keys: int, grouped: bool) -> Scope:
        """The keys that the rows see, in a pool with so many pages of keys for a page of context."""
        return Scope(self.phase, _finer(self.tables, pages_of_keys), self.sequences, grouped)

    def row_tables(self) -> torch.Tensor:
        """Pages of context by row, int32 [n, P]."""
        return self.tables if self.sequences is None else self.tables[self.sequences]


def scored_rows(batch: ForwardBatch, ratio: int, most: int) -> list[ScoredRows]:
    """The rows that see more than `most` entries: decode rows together, then each chunk's."""
    lengths = ((batch.positions + 1) // ratio).to(torch.int32)
    groups = []
    rows = (lengths[: batch.decode_rows] > most).nonzero().view(-1)
    if rows.numel():
        groups.append(_decoding(batch, rows, lengths[rows]))
    for segment in batch.segments:
        rows = (lengths[segment.rows] > most).nonzero().view(-1) + segment.row
        if rows.numel():
            tables = segment.pages.to(torch.int32).unsqueeze(0)
            groups.append(ScoredRows("prefill", rows, lengths[rows], tables, torch.zeros_like(rows)))
    return groups


def _decoding(batch: ForwardBatch, rows: torch.Tensor, seen: torch.Tensor) -> ScoredRows:
    tables = batch.page_table[rows].to(torch.int32)
    if not batch.drafted:
        return ScoredRows("decode", rows, seen, tables, None)
    assert batch.decode is not None
    _, sequences, counts = torch.unique_consecutive(batch.decode.slots[rows], return_inverse=True, return_counts=True)
    return ScoredRows("verify", rows, seen, tables[counts.cumsum(0) - counts], sequences)


def _finer(tables: torch.Tensor, parts: int) -> torch.Tensor:
    """Page tables of pages that are `parts` smaller ones each, in a row."""
    if parts == 1:
        return tables
    part = torch.arange(parts, dtype=torch.int32)
    return (tables[..., None] * parts + part).flatten(1)
