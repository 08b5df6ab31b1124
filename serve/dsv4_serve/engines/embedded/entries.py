"""The compressed rows that a layer attends to besides its window: where they lie, and reading them.

Every query has the same number of entry slots (index_topk for ratio 4, those of a full context for ratio 128). Slots
that a query does not use read zeros from the reserved page and carry a bias of -inf: their weight is exactly zero, and
neither stale nor foreign rows can reach the result.
"""

from __future__ import annotations

from typing import Protocol

import torch

from .batch import Segment
from .compressor import Closed
from .config import PAGE_TOKENS
from .decode_plan import DecodePlan


class RowPages(Protocol):
    """Paged rows of `width` float32 values, by slot int64 [n]."""

    @property
    def width(self) -> int: ...

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None: ...

    def read(self, slots: torch.Tensor) -> torch.Tensor: ...


class EntryStore:
    """The pages of one layer's compressed rows, addressed by entry number and page table."""

    def __init__(self, pages: RowPages, ratio: int, slots: int) -> None:
        self.pages, self._ratio, self._slots = pages, ratio, slots
        self._per_page = PAGE_TOKENS // ratio

    def write(self, closed: Closed, rows: torch.Tensor, pages: torch.Tensor) -> None:
        """Store finished rows [n, dim]; `pages` int64 [n] holds each entry's page."""
        self.pages.write(pages * self._per_page + closed.entries % self._per_page, rows)

    def page_column(self, closed: Closed) -> torch.Tensor:
        """Which column of a page table each entry is in, int64 [n]."""
        return closed.entries // self._per_page

    def read_decode(
        self, plan: DecodePlan, page_table: torch.Tensor, chosen: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows float32 [n, slots, dim] and bias float32 [n, 1, slots] of the decode rows.

        page_table int64 [n, P]; chosen int64 [n, slots] for ratio 4, None for ratio 128.
        """
        if chosen is None:
            used = (plan.last_position + 1) // self._ratio
            entry = torch.arange(used).expand(plan.count, -1)
            live = entry < ((plan.positions + 1) // self._ratio)[:, None]
        else:
            used = min((plan.last_position + 1) // self._ratio, self._slots)
            entry = chosen[:, :used]
            live = entry >= 0
        bias = torch.full((plan.count, 1, self._slots), -torch.inf)
        rows = torch.zeros(plan.count, self._slots, self.pages.width)
        if used:
            bias[:, 0, :used].masked_fill_(live, 0)
            places = self._places(entry * live, page_table).mul_(live)
            rows[:, :used] = self.pages.read(places.view(-1)).view(plan.count, used, -1)
        return rows, bias

    def read_chunk(self, segment: Segment, chosen: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and bias [length, 1, slots] of a chunk's queries.

        Ratio 128 (chosen None): rows [slots, dim], the same for all queries. Ratio 4: rows [length, slots, dim].
        """
        count = segment.end // self._ratio
        known = torch.zeros(max(count, self._slots if chosen is None else 1), self.pages.width)
        if count:
            known[:count] = self.pages.read(self._places(torch.arange(count)[None], segment.pages[None])[0])
        if chosen is None:
            seen = (torch.arange(segment.start, segment.end) + 1) // self._ratio
            live = torch.arange(self._slots) < seen[:, None]
            rows = known
        else:
            live = chosen >= 0
            rows = known.index_select(0, chosen.clamp(min=0).view(-1)).view(segment.length, self._slots, -1)
        return rows, torch.zeros(segment.length, 1, self._slots).masked_fill_(~live.unsqueeze(1), -torch.inf)

    def _places(self, entry: torch.Tensor, page_table: torch.Tensor) -> torch.Tensor:
        """Pool slots of entries int64 [n, e] with the pages of page_table int64 [n, P]."""
        return page_table.gather(1, entry // self._per_page).mul_(self._per_page).add_(entry % self._per_page)


def entry_scores(q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """q [n, heads, dim] with rows [e, dim] or [n, e, dim] to [n, heads, e]."""
    if rows.dim() == 3:
        return torch.bmm(q, rows.transpose(1, 2))
    return (q.reshape(-1, q.shape[2]) @ rows.T).view(q.shape[0], q.shape[1], -1)


def weigh_entries(weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """weights [n, heads, e] with rows [e, dim] or [n, e, dim] to [n, heads, dim]."""
    if rows.dim() == 3:
        return torch.bmm(weights, rows)
    return (weights.reshape(-1, weights.shape[2]) @ rows).view(weights.shape[0], weights.shape[1], -1)
