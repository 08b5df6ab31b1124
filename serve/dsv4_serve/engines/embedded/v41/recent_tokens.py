"""The tokens that n-grams of a batch's rows are made of: each row's own and those before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..batch import ForwardBatch

ABSENT = -1
"""Stands for a place before the sequence."""


def recent_tokens(batch: ForwardBatch, places: int) -> torch.Tensor:
    """int64 [T, places]: the row's token first, then those before it, ABSENT before the sequence and in padding.

    Raises ValueError for a row whose batch does not say enough of the tokens before it.
    """
    starts = [int(p) for p in batch.positions[: batch.decode_rows]] + [s.start for s in batch.segments]
    pasts = [_past(before, start, places - 1) for before, start in zip(batch.before, starts, strict=True)]
    out = torch.full((batch.token_ids.shape[0], places), ABSENT)
    count = batch.decode_rows
    if count:
        out[:count, 0] = batch.token_ids[:count]
        out[:count, 1:] = torch.tensor(pasts[:count]).view(count, -1).flip(1)
    for segment, past in zip(batch.segments, pasts[count:], strict=True):
        tokens = torch.cat([torch.tensor(past), batch.token_ids[segment.rows]])
        out[segment.rows] = tokens.unfold(0, places, 1).flip(1)
    return out


def _past(before: Sequence[int], start: int, wanted: int) -> list[int]:
    """The `wanted` tokens before position `start`, oldest first."""
    known = list(before[-wanted:])
    if len(known) < min(wanted, start):
        raise ValueError(
            f"a row at position {start} needs the {min(wanted, start)} tokens before it, {len(known)} given"
        )
    return [ABSENT] * (wanted - len(known)) + known
