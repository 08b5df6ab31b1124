"""One forward pass: its batch, and what layers share of it instead of computing it again."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from dsv4_kernels.pooling import TokenRuns

from ..batch import ForwardBatch
from ..config import PAGE_TOKENS
from ..geometry import MAX_DRAFT_TOKENS
from .scored_rows import ScoredRows, scored_rows


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """`runs` are the batch's rows by working slot, padding excluded; `pages` int64 [T] the page of each row's token.

    `ngrams` int64 [T, engram layers, columns] are rows of the engram tables. Layers publish what others read:
    `choices` holds chosen entries int64 [T, index_topk] by index source, `candidates` the candidate source's blocks
    int32 [n, blocks] for each group of `scored`.
    """

    batch: ForwardBatch
    runs: TokenRuns
    pages: torch.Tensor
    ngrams: torch.Tensor | None
    choices: dict[int, torch.Tensor] = field(default_factory=dict)
    candidates: list[torch.Tensor] = field(default_factory=list)
    _scored: dict[int, list[ScoredRows]] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: ForwardBatch, ngrams: torch.Tensor | None) -> ForwardPass:
        """A pass that computes this batch."""
        rows = batch.positions.shape[0]
        slots = torch.full((rows,), -1, dtype=torch.int64)
        pages = torch.zeros(rows, dtype=torch.int64)
        longest = 1
        if batch.decode is not None:
            count = batch.decode_rows
            slots[:count] = batch.decode.slots
            numbers = batch.positions[:count] // PAGE_TOKENS
            pages[:count] = batch.page_table.gather(1, numbers[:, None])[:, 0]
            longest = MAX_DRAFT_TOKENS + 1 if batch.drafted else 1
        for segment in batch.segments:
            slots[segment.rows] = segment.slot
            pages[segment.rows] = segment.pages[batch.positions[segment.rows] // PAGE_TOKENS]
            longest = max(longest, segment.length)
        return cls(batch, TokenRuns.of(batch.positions, slots, longest), pages, ngrams)

    @property
    def token_ids(self) -> torch.Tensor:
        """Token of each row, int64 [T]."""
        return self.batch.token_ids

    def entry_slots(self, ratio: int) -> torch.Tensor:
        """Where the entry that each row completes is stored, int64 [T]; -1 where a row completes none."""
        per_page = PAGE_TOKENS // ratio
        places = self.pages * per_page + self.runs.positions % PAGE_TOKENS // ratio
        return places.masked_fill(~self.runs.closing(ratio), -1)

    def scored(self, ratio: int, most: int) -> list[ScoredRows]:
        """The rows that see more than `most` entries of a ratio, in groups that share keys."""
        if ratio not in self._scored:
            self._scored[ratio] = scored_rows(self.batch, ratio, most)
        return self._scored[ratio]
