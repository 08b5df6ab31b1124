"""What one request contributes to a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .batch import DecodeRow, PromptChunk
from .running import Request


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens from the request's position `computed`, and a draft behind them if it decodes."""

    request: Request
    count: int
    draft: Sequence[int] = ()

    @property
    def decode_rows(self) -> list[DecodeRow]:
        """The newest token, then the draft."""
        request = self.request
        tokens = [request.output_ids[-1], *self.draft]
        return [DecodeRow(token, request.computed + n, request.slot, request.pages) for n, token in enumerate(tokens)]

    @property
    def chunk(self) -> PromptChunk:
        """Prompt tokens, or those that a retracted request had already."""
        request = self.request
        tokens = request.tokens(request.computed, request.computed + self.count)
        return PromptChunk(tokens, request.computed, request.slot, request.pages)
