"""DSpark as a source of drafts: which hidden states the drafter gets, and where it begins."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..draft import ContextSpan, DraftSequence, DraftSource
from ..geometry import WINDOW
from ..hidden_tap import HiddenTap
from .block import Anchor, make_block
from .drafter import Drafter


class DSparkSource(DraftSource):
    """Drafts with a network that reads the model's hidden states through `tap`.

    Its context begins where a request's own computation does: rows that came from the prefix cache have left no hidden
    states. A draft just behind a cached prefix is made from less, until 128 tokens were computed.
    """

    name = "dspark"

    def __init__(self, drafter: Drafter, tap: HiddenTap) -> None:
        self._drafter, self._tap = drafter, tap
        self.longest = drafter.config.block
        self._first: dict[int, int] = {}

    def start(self, slot: int, position: int) -> None:
        """See `DraftSource`."""
        self._drafter.reset(slot)
        self._first[slot] = position

    def follow(self, spans: Sequence[ContextSpan]) -> None:
        """See `DraftSource`."""
        if not spans:
            return
        recent = [(span, max(span.count - WINDOW, 0)) for span in spans]
        rows = torch.cat([torch.arange(span.row + skip, span.row + span.count) for span, skip in recent])
        positions = torch.cat([torch.arange(span.position + skip, span.position + span.count) for span, skip in recent])
        counts = torch.tensor([span.count - skip for span, skip in recent])
        slots = torch.tensor([span.slot for span in spans]).repeat_interleave(counts)
        self._drafter.follow(self._tap.rows(rows), slots, positions)

    def propose(self, sequences: Sequence[DraftSequence]) -> list[list[int]]:
        """See `DraftSource`."""
        config = self._drafter.config
        anchors = [Anchor(s.tokens[-1], len(s.tokens) - 1, s.slot, self._first[s.slot]) for s in sequences]
        tokens = self._drafter.draft(make_block(anchors, config.block, config.noise_token)).tolist()
        return [draft[: sequence.room] for draft, sequence in zip(tokens, sequences, strict=True)]
