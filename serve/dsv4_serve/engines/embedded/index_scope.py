"""Whose keys the rows of an index scoring see, and the operation that scores them: a row alone, a chunk, or a draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4_kernels import ops
from dsv4_kernels.counters import Phase
from dsv4_kernels.pool import IndexPool, Query

from .geometry import MAX_DRAFT_TOKENS

EIGHT = 8
"""Slots of a page that only row groups read."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Rows and their sequences: `page_table` int32 [S, P]; row i reads row `sequences[i]` (int64 [n], ascending).

    Without `sequences` every row is a sequence of its own, as in decoding. `grouped` rows go through the row-group
    operation in every phase; drafts and pages of 8 always do.
    """

    phase: Phase
    page_table: torch.Tensor
    sequences: torch.Tensor | None
    grouped: bool = False

    def logits(
        self,
        query: Query,
        pool: IndexPool,
        weights: torch.Tensor,
        lengths: torch.Tensor,
        picked: torch.Tensor,
        weight_scale: float,
        longest: int,
    ) -> torch.Tensor:
        """Scores float32 [m, longest] of the rows `picked` int64 [m], which `query`, `weights` and `lengths` are of."""
        if self.sequences is None:
            table, sequences = self.page_table[picked], None
        else:
            table, sequences = self.page_table, self.sequences[picked]
        if self.grouped or self.phase == "verify" or pool.spec.layout.page_slots == EIGHT:
            rows = torch.arange(len(lengths)) if sequences is None else sequences
            starts = torch.searchsorted(rows, torch.arange(len(table) + 1), out_int32=True)
            return ops.rowgroup_logits(
                query,
                pool,
                weights,
                table,
                lengths,
                starts,
                max_query_len=self._most_rows(starts),
                weight_scale=weight_scale,
                max_seq_len=longest,
                phase=self.phase,
            )
        return ops.paged_logits(
            query,
            pool,
            weights,
            table,
            lengths,
            weight_scale=weight_scale,
            max_seq_len=longest,
            row_to_seq=None if sequences is None else sequences.to(torch.int32),
            phase=self.phase,
        )

    def _most_rows(self, starts: torch.Tensor) -> int:
        """Rows of the largest group, or more."""
        if self.sequences is None:
            return 1
        return MAX_DRAFT_TOKENS + 1 if self.phase == "verify" else int(starts.diff().max())
