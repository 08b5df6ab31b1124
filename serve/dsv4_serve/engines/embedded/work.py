"""What one request contributes to a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .batch import DecodeRow, PromptChunk
from .geometry import MAX_NGRAM_TOKENS
from .running import Request

LOOK_BACK = MAX_NGRAM_TOKENS - 1


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens from the request's position `computed`, and a draft behind them if it decodes."""

    request: Request
    count: int
    draft: Sequence[int] = ()

    @property
    def decode_rows(self) -> list[DecodeRow]:
        """The newest token, then the draft."""
        request, place = self.request, self.request.computed
        before = request.tokens(max(place - LOOK_BACK, 0), place)
        known = len(before)
        tokens = [*before, request.output_ids[-1], *self.draft]
        return [
            DecodeRow(tokens[known + n], place + n, request.slot, request.pages, tokens[: known + n])
            for n in range(1 + len(self.draft))
        ]

    @property
    def chunk(self) -> PromptChunk:
        """Prompt tokens, or those that a retracted request had already."""
        request = self.request
        place = request.computed
        before = request.tokens(max(place - LOOK_BACK, 0), place)
        return PromptChunk(request.tokens(place, place + self.count), place, request.slot, request.pages, before)
