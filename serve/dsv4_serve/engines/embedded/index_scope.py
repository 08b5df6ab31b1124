"""Whose keys the rows of an index scoring see, and the operation that scores them: a row alone, a chunk, or a draft."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsv4_kernels import ops
from dsv4_kernels.counters import Phase
from dsv4_kernels.pool import IndexPool, Query

from .geometry import MAX_DRAFT_TOKENS


@dataclass(frozen=True, slots=True)
class Scope:
    """Rows and their sequences: `page_table` int32 [S, P]; row i reads row `sequences[i]` (int64 [n], ascending).

    Without `sequences` every row is a sequence of its own, as in decoding.
    """

    phase: Phase
    page_table: torch.Tensor
    sequences: torch.Tensor | None

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
        if self.phase == "verify":
            assert sequences is not None
            starts = torch.searchsorted(sequences, torch.arange(len(table) + 1), out_int32=True)
            return ops.rowgroup_logits(
                query,
                pool,
                weights,
                table,
                lengths,
                starts,
                max_query_len=MAX_DRAFT_TOKENS + 1,
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
