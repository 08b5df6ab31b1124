"""One forward pass's input: rows of running requests (one token each) followed by chunks of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dsv4_kernels.counters import Phase

from .decode_plan import DecodePlan, make_plan
from .geometry import TILE_TOKENS
from .linear import padded


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One token of a running request: its id, position, working slot and the pages of its context.

    Rows of one slot stand together, at consecutive positions: the newest token, then a draft to be verified. `before`
    are the tokens before it, at least as many of the last as the model's n-grams reach back.
    """

    token_id: int
    position: int
    slot: int
    pages: Sequence[int]
    before: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """Consecutive prompt tokens of one request; `start` is a multiple of 8. `before` as in DecodeRow."""

    token_ids: Sequence[int]
    start: int
    slot: int
    pages: Sequence[int]
    before: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.start % TILE_TOKENS or not self.token_ids:
            raise ValueError(f"chunk start={self.start}, length={len(self.token_ids)}: start is a multiple of 8")


@dataclass(frozen=True, slots=True)
class Segment:
    """A PromptChunk's place in the batch: rows `row` to `row + length`; `pages` int64 [n]."""

    row: int
    start: int
    length: int
    slot: int
    pages: torch.Tensor

    @property
    def rows(self) -> slice:
        return slice(self.row, self.row + self.length)

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """Tensors of a forward pass with T rows, T a multiple of 8; rows past `rows` are padding.

    token_ids, positions: int64 [T]. The first `decode_rows` rows are decode rows, described by `decode` and with
    `page_table` int64 [decode_rows, P] (0 where a request has fewer pages). `drafted` tells that some slot has several
    decode rows. `last_rows` are the rows whose logits are wanted: each decode row, and the last row of each chunk.
    `before` are the tokens before each decode row and each segment, as far as they were given.
    """

    rows: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    decode: DecodePlan | None
    page_table: torch.Tensor
    segments: tuple[Segment, ...]
    last_rows: torch.Tensor
    drafted: bool = False
    before: tuple[Sequence[int], ...] = ()

    @property
    def decode_rows(self) -> int:
        return 0 if self.decode is None else self.decode.count

    @property
    def phase(self) -> Phase:
        """What operations on all rows at once are counted as."""
        if self.segments:
            return "prefill"
        return "verify" if self.drafted else "decode"


def make_batch(decode: Sequence[DecodeRow], chunks: Sequence[PromptChunk]) -> ForwardBatch:
    """Lay decode rows and chunks out in one padded batch."""
    token_ids = [row.token_id for row in decode]
    positions = [row.position for row in decode]
    segments, last = [], list(range(len(decode)))
    for chunk in chunks:
        length = len(chunk.token_ids)
        segments.append(Segment(len(token_ids), chunk.start, length, chunk.slot, torch.tensor(chunk.pages)))
        token_ids += chunk.token_ids
        positions += range(chunk.start, chunk.start + length)
        last.append(len(token_ids) - 1)
    rows = len(token_ids)
    padding = [0] * (padded(rows) - rows)
    width = max((len(row.pages) for row in decode), default=0)
    table = [[*row.pages, *[0] * (width - len(row.pages))] for row in decode]
    all_positions = torch.tensor(positions + padding)
    slots = torch.tensor([row.slot for row in decode], dtype=torch.int64)
    return ForwardBatch(
        rows=rows,
        token_ids=torch.tensor(token_ids + padding),
        positions=all_positions,
        decode=make_plan(all_positions[: len(decode)], slots) if decode else None,
        page_table=torch.tensor(table, dtype=torch.int64).view(len(decode), width),
        segments=tuple(segments),
        last_rows=torch.tensor(last, dtype=torch.int64),
        drafted=len({row.slot for row in decode}) < len(decode),
        before=(*(row.before for row in decode), *(chunk.before for chunk in chunks)),
    )
