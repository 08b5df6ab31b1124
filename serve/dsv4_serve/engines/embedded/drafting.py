"""Which requests of a step get a draft, and how long it may be."""

from __future__ import annotations

from collections.abc import Sequence

from .config import PAGE_TOKENS
from .draft import DraftSequence, DraftSource
from .pools import CachePools
from .running import Request
from .work import Work


class Drafting:
    """Turns decoding requests into work, with drafts of at most `most` tokens if there is a source of them."""

    def __init__(self, source: DraftSource | None, most: int, pools: CachePools) -> None:
        self._source, self._most, self._pools = source, most, pools

    def work(self, decoding: Sequence[Request]) -> list[Work]:
        """One Work a request; each has a page for its next token."""
        drafts = self._drafts(decoding)
        return [Work(request, 1, self._fitting(request, drafts.get(request, []))) for request in decoding]

    def _drafts(self, decoding: Sequence[Request]) -> dict[Request, list[int]]:
        # A step gives one token more than it drafted right.
        room = {r: min(self._most, r.params.max_tokens - len(r.output_ids) - 1) for r in decoding}
        asked = [request for request in decoding if room[request] > 0]
        if self._source is None or not asked:
            return {}
        sequences = [DraftSequence(r.slot, r.tokens(0, r.length), room[r]) for r in asked]
        return dict(zip(asked, self._source.propose(sequences), strict=True))

    def _fitting(self, request: Request, draft: list[int]) -> list[int]:
        """As much of a draft as has pages: a free one may be taken for it, none is taken from anybody."""
        last = request.computed + len(draft)
        if last // PAGE_TOKENS >= len(request.pages) and (page := self._pools.pages.take()) is not None:
            request.pages.append(page)
        return draft[: len(request.pages) * PAGE_TOKENS - request.computed - 1]
