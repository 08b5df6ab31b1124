"""Known answers of the operations that choose: top-k, candidate blocks, schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dsv4_kernels.implementation import Implementation

INF = float("inf")


def _difference(name: str, got: Tensor, known: list[list[int]]) -> str:
    found = got.tolist()
    return "" if found == known else f"{name} {found} differ from the known ones {known}"


def _rows(device: torch.device) -> tuple[Tensor, Tensor]:
    row = [3.0, 7.0, 7.0, float("nan"), -INF, 1.0, 9.0]
    logits = torch.tensor([row, row, row, [0.0, -0.0, 0.0, -1.0, INF, 0.0, 0.0]], device=device)
    return logits, torch.tensor([6, 3, 0, 7], dtype=torch.int32, device=device)


KNOWN_TOPK = [[1, 2, 0, 5], [1, 2, 0, -1], [-1] * 4, [4, 0, 1, 2]]


def _topk(backend: Implementation, device: torch.device) -> str:
    best = backend.topk(*_rows(device), 4, False)
    ascending = [sorted(row, key=lambda index: (index < 0, index)) for row in KNOWN_TOPK]
    by_position = backend.topk(*_rows(device), 4, True)
    return _difference("indices", best, KNOWN_TOPK) or _difference("indices by position", by_position, ascending)


def _topk_slots(backend: Implementation, device: torch.device) -> str:
    logits, lengths = _rows(device)
    table = torch.tensor([[5, 9, 2, 0], [1, 7, 3, 0]], dtype=torch.int32, device=device)
    seq = torch.tensor([0, 1, 0, 1], dtype=torch.int32, device=device)
    index, slots = backend.topk_slots(logits, lengths, 4, table, seq, 2, False)
    known = [[11, 18, 10, 5], [3, 14, 2, -1], [-1] * 4, [6, 2, 3, 14]]
    return _difference("indices", index, KNOWN_TOPK) or _difference("slots", slots, known)


def _candidate_blocks(backend: Implementation, device: torch.device) -> str:
    """Blocks of 2: their maxima are 5, 7, 7 and the pinned newest; NaN never wins."""
    row = [5.0, float("nan"), 1.0, 7.0, 7.0, 7.0, -9.0, INF]
    logits = torch.tensor([row, row, row], device=device)
    lengths = torch.tensor([7, 3, 0], dtype=torch.int32, device=device)
    blocks = backend.candidate_blocks(logits, lengths, 3, 2)
    return _difference("blocks", blocks, [[1, 2, 3], [0, 1, -1], [-1, -1, -1]])


def _decode_schedule(backend: Implementation, device: torch.device) -> str:
    lengths = torch.tensor([0, 300, 1025], dtype=torch.int32, device=device)
    known = [[1, 0, 2, 300], [2, 0, 2, 1025], [2, 2, 2, 1025], [2, 4, 1, 1025], [0, 0, 1, 0]]
    return _difference("slots", backend.decode_schedule(lengths, 2048, 5, 256), known)


def _prefill_schedule(backend: Implementation, device: torch.device) -> str:
    seq, starts, ends = (torch.tensor(v, dtype=torch.int32, device=device) for v in ([1, 0], [3, 0], [300, 600]))
    known = [[0, 1, 0, 2, 3, 300], [1, 0, 0, 2, 0, 600], [1, 0, 2, 1, 0, 600], [0, 0, 0, 1, 0, 0]]
    return _difference("slots", backend.prefill_schedule(seq, starts, ends, 768, 4, 256), known)


TESTS: dict[str, Callable[[Implementation, torch.device], str]] = {
    "topk": _topk,
    "topk_slots": _topk_slots,
    "candidate_blocks": _candidate_blocks,
    "decode_schedule": _decode_schedule,
    "prefill_schedule": _prefill_schedule,
}
