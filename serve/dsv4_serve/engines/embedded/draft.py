"""Where drafts of speculative decoding come from.

A draft is a guess at the next tokens, which the model then verifies in one pass: a wrong one costs rows of that pass
and never changes a token. `PromptLookup` needs no training: it looks for the last tokens earlier in the request's own
text and takes what followed. A trained drafter is in `dspark`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .geometry import MAX_DRAFT_TOKENS

LONGEST, SHORTEST = 4, 2
"""Tokens of the ending that is looked for: first a long one, then shorter ones, which guess worse."""


@dataclass(frozen=True, slots=True)
class DraftSequence:
    """A request that decodes: its slot, prompt and answer so far, and how many tokens may be drafted (1 or more)."""

    slot: int
    tokens: Sequence[int]
    room: int


@dataclass(frozen=True, slots=True)
class ContextSpan:
    """`count` rows of the last forward pass, from `row` on, that were computed from tokens of a request's text: those
    at `position` and after it, in working slot `slot`. Rows of rejected drafts are in no span."""

    slot: int
    row: int
    position: int
    count: int


class DraftSource(Protocol):
    """Proposes tokens; it must not assume that they are taken.

    `name` is its name in metrics, `longest` the most tokens that it drafts at once. A source with state of its own
    keeps it by working slot, and hears of all that is computed there.
    """

    name: str
    longest: int

    def start(self, slot: int, position: int) -> None:
        """A request took the slot; what it computes begins at `position`, behind what the prefix cache had."""
        return

    def follow(self, spans: Sequence[ContextSpan]) -> None:
        """A forward pass was run, and these of its rows belong to texts for good."""
        return

    def propose(self, sequences: Sequence[DraftSequence]) -> list[list[int]]:
        """For each sequence 0 to `room` tokens that may come next."""
        ...


class PromptLookup(DraftSource):
    """Drafts what followed the latest earlier occurrence of the text's ending."""

    name = "ngram"
    longest = MAX_DRAFT_TOKENS

    def propose(self, sequences: Sequence[DraftSequence]) -> list[list[int]]:
        """See `DraftSource`."""
        return [_continuation(sequence.tokens, sequence.room) for sequence in sequences]


def _continuation(tokens: Sequence[int], room: int) -> list[int]:
    for length in range(LONGEST, SHORTEST - 1, -1):
        place = _latest(tokens, length)
        if place is not None:
            return list(tokens[place + length : place + length + room])
    return []


def _latest(tokens: Sequence[int], length: int) -> int | None:
    """Where the last `length` tokens stand for the latest time before the end."""
    text = array("q", tokens).tobytes()
    width = array("q").itemsize
    ending, end = text[-length * width :], len(text) - width
    # Bytes are searched, at the speed of the C library; a find between two tokens is none.
    while (place := text.rfind(ending, 0, end)) >= 0:
        if place % width == 0:
            return place // width
        end = place + len(ending) - 1
    return None
