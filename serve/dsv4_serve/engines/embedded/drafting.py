"""Which requests of a step get a draft and how long it may be, and what the source of drafts hears of a step."""

from __future__ import annotations

from collections.abc import Sequence

from .batch import Segment
from .config import PAGE_TOKENS
from .draft import ContextSpan, DraftSequence, DraftSource
from .emission import Emission
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

    def start(self, request: Request) -> None:
        """A request took its slot and its cached prefix."""
        if self._source is not None:
            self._source.start(request.slot, request.computed)

    def follow(self, verified: Sequence[Emission], segments: Sequence[Segment]) -> None:
        """A step was run: `verified` are its decoding requests, with the tokens that came of them; `segments` its
        prompt chunks."""
        if self._source is None:
            return
        # A row gives a token only if it was computed from right ones.
        spans = [ContextSpan(e.request.slot, e.row, e.request.computed, len(e.outputs)) for e in verified]
        spans += [ContextSpan(s.slot, s.row, s.start, s.length) for s in segments]
        self._source.follow([span for span in spans if span.count])

    def _drafts(self, decoding: Sequence[Request]) -> dict[Request, list[int]]:
        if self._source is None:
            return {}
        # A step gives one token more than it drafted right.
        room = {r: min(self._most, r.params.max_tokens - len(r.output_ids) - 1) for r in decoding}
        sequences = {r: DraftSequence(r.slot, r.tokens(0, r.length), most) for r, most in room.items() if most > 0}
        if not sequences:
            return {}
        return dict(zip(sequences, self._source.propose(list(sequences.values())), strict=True))

    def _fitting(self, request: Request, draft: list[int]) -> list[int]:
        """As much of a draft as has pages: a free one may be taken for it, none is taken from anybody."""
        last = request.computed + len(draft)
        if last // PAGE_TOKENS >= len(request.pages) and (page := self._pools.pages.take()) is not None:
            request.pages.append(page)
        return draft[: len(request.pages) * PAGE_TOKENS - request.computed - 1]
