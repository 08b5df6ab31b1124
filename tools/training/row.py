"""A training row under construction: token ids and what each token counts as in the loss."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from tools.training.tokens import PAD, encode


class Kind(enum.IntEnum):
    """What predicting a token teaches. Each kind's loss is averaged on its own (losses.py weighs them)."""

    IGNORED = 0  # prompts and padding
    RECORD = 1  # record text that is mostly random: learnt for its shape only
    TEXT = 2  # prose, stories
    REPLY = 3  # the model's turn: words, echoed keys, the end of the turn
    LOOKUP = 4  # digits that only the document holds


@dataclass
class Row:
    """Ids and kinds, one entry a token; `length` is where the row is cut or padded to."""

    length: int
    ids: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Tokens left."""
        return self.length - len(self.ids)

    def add(self, content: bytes | str | Sequence[int], kind: Kind) -> "Row":
        """Append text or ids, all of one kind."""
        ids = encode(content) if isinstance(content, bytes | str) else list(content)
        self.ids += ids
        self.kinds += [int(kind)] * len(ids)
        return self

    def finish(self) -> "Row":
        """Cut or pad to `length`."""
        if self.room > 0:
            self.add([PAD] * self.room, Kind.IGNORED)
        del self.ids[self.length :], self.kinds[self.length :]
        return self
