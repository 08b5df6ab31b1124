"""Where drafts of speculative decoding come from.

A draft is a guess at the next tokens, which the model then verifies in one pass: a wrong one costs rows of that pass
and never changes a token. `PromptLookup` needs no training: it looks for the last tokens earlier in the request's own
text and takes what followed. A draft head of the model (EAGLE, DSpark) is another DraftSource: it gets all sequences of
a step at once, and their slots, by which it can keep state of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

LONGEST, SHORTEST = 4, 2
"""Tokens of the ending that is looked for: first a long one, then shorter ones, which guess worse."""


@dataclass(frozen=True, slots=True)
class DraftSequence:
    """A request that decodes: its slot, prompt and answer so far, and how many tokens may be drafted (1 or more)."""

    slot: int
    tokens: Sequence[int]
    room: int


class DraftSource(Protocol):
    """Proposes tokens; it must not assume that they are taken."""

    def propose(self, sequences: Sequence[DraftSequence]) -> list[list[int]]:
        """For each sequence 0 to `room` tokens that may come next."""
        ...


class PromptLookup:
    """Drafts what followed the latest earlier occurrence of the text's ending."""

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
