"""From the bytes of tokens to text for a client: whole characters, and never a part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Text of one completion, released piece by piece.

    A character is released when its last byte has arrived. Text that might be the start of a stop string is
    held back until it is decided. The stop string that ends first wins, whatever the boundaries of the tokens
    are; of two that end at the same character, the longer.
    """

    def __init__(self, stop_strings: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stop_strings)
        self._held = ""
        self.stopped = False
        self.decoded_characters = 0
        """Characters decoded so far, held ones included: where the text of the next token begins."""
        self.released_characters = 0

    def push(self, data: bytes) -> str:
        """The text that `data` releases. Nothing may be pushed after `stopped`."""
        return self._accept(self._decoder.decode(data))

    def flush(self) -> str:
        """The text that was still held; bytes that never became a character end as U+FFFD."""
        text = self._accept(self._decoder.decode(b"", final=True))
        if self.stopped:
            return text
        return text + self._release(self._held)

    def _accept(self, text: str) -> str:
        self.decoded_characters += len(text)
        if not self._stops:
            return self._release(text)
        text = self._held + text
        matches = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            self.stopped = True
            return self._release(text[: min(matches)[1]])
        keep = len(text) - self._undecided(text)
        self._held = text[keep:]
        return self._release(text[:keep])

    def _release(self, text: str) -> str:
        self.released_characters += len(text)
        self._held = "" if self.stopped else self._held
        return text

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(len(stop) for stop in self._stops) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
