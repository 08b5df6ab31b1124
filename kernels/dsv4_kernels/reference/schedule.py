"""Which workgroup scores which chunks, by the formulas that AITER and SGLang share."""

from __future__ import annotations

import torch
from torch import Tensor


def decode_schedule(lengths: Tensor, max_seq_len: int, ctas: int, chunk: int) -> Tensor:
    """See `schedules.decode_schedule`."""
    chunks = (lengths.long() + chunk - 1) // chunk
    row, first, count = _slots(chunks, max(1, -(-max_seq_len // chunk)), ctas)
    info = torch.stack([row, first, count, lengths.long()[row]], 1)
    unused = torch.tensor([0, 0, 1, 0], device=lengths.device)
    return torch.where((count > 0)[:, None], info, unused).int()


def prefill_schedule(
    row_to_seq: Tensor, starts: Tensor, ends: Tensor, max_seq_len: int, ctas: int, chunk: int
) -> Tensor:
    """See `schedules.prefill_schedule`."""
    chunks = (ends.long() + chunk - 1) // chunk
    row, first, count = _slots(chunks, max(1, -(-max_seq_len // chunk)), ctas)
    info = torch.stack([row, row_to_seq.long()[row], first, count, starts.long()[row], ends.long()[row]], 1)
    unused = torch.tensor([0, 0, 0, 1, 0, 0], device=ends.device)
    return torch.where((count > 0)[:, None], info, unused).int()


def _slots(chunks: Tensor, most: int, ctas: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row, first chunk and chunk count (0 where unused) of each of `ctas` slots."""
    per_cta = _chunks_per_cta(chunks, most, ctas)
    need = (chunks + per_cta - 1) // per_cta
    ends = need.cumsum(0)
    slot = torch.arange(ctas, device=chunks.device)
    row = torch.searchsorted(ends, slot, right=True).clamp(max=len(chunks) - 1)
    first = (slot - (ends - need)[row]) * per_cta
    count = (chunks[row] - first).clamp(0, per_cta)
    used = slot < ends[-1]
    return row, first, torch.where(used, count, 0)


def _chunks_per_cta(chunks: Tensor, most: int, ctas: int) -> int:
    """The fewest chunks a workgroup takes in one go so that all workgroups suffice: the need falls as it grows."""
    low, high = 1, most + 1
    while low < high:
        middle = (low + high) // 2
        if int(((chunks + middle - 1) // middle).sum()) <= ctas:
            high = middle
        else:
            low = middle + 1
    return low if low <= most else max(1, int(chunks.max()))
