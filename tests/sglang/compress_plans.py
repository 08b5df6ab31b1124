"""Which token completes a compressed key: SGLang's planner `compress_plan`, a JIT kernel, done in torch.

A plan's row is 16 bytes, of which the index path reads two words: the sequence length at the key's last token, and in
the low 16 bits of the next the number of that token in the step. What the pooling kernel reads is left zero.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

INVALID = -1
"""The sequence length of a row that completes nothing."""


def plan_decode(requests: Tensor, table: Tensor, states: Tensor, lengths: Tensor, ratio: int, *rest: object) -> Tensor:
    """uint8 [B, 16]: a row for each request, complete or not."""
    words = torch.zeros(len(lengths), 4, dtype=torch.int32)
    words[:, 0] = lengths.int()
    return words.view(torch.uint8)


def plan_prefill(
    requests: Tensor,
    table: Tensor,
    states: Tensor,
    lengths: Tensor,
    extend: Tensor,
    pinned: Tensor,
    rows: int,
    ratio: int,
    *rest: object,
) -> tuple[Tensor, Tensor]:
    """uint8 [rows, 16] and [rows, 8]: keys in the order of their tokens, then rows that complete nothing."""
    words = torch.zeros(rows, 4, dtype=torch.int32)
    words[:, 0] = INVALID
    found = 0
    token = 0
    for length, count in zip(lengths.tolist(), extend.tolist(), strict=True):
        for position in range(length - count, length):
            if (position + 1) % ratio == 0:
                words[found, 0], words[found, 1] = position + 1, token
                found += 1
            token += 1
    return words.view(torch.uint8), torch.zeros(rows, 8, dtype=torch.uint8)


PLANNER = SimpleNamespace(plan_decode=plan_decode, plan_prefill=plan_prefill)
"""In place of SGLang's `_jit_compress_plan_module()`."""
