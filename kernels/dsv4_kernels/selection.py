"""The best of a row's scores: as key numbers, and as slots of the pool."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import backends, check
from dsv4_kernels.counters import Phase


def topk(logits: Tensor, lengths: Tensor, k: int, *, by_position: bool = False, phase: Phase | None = None) -> Tensor:
    """int32 [T, k]: per row the columns of the k highest scores below its length, padded with -1.

    The best first, or with `by_position` ascending, as V4.1's attention reads them.

    `logits` float32 [T, n], `lengths` int32 [T]. The lowest index wins a tie, both zeros are equal, and NaN
    ranks as -inf, so an index is always below the row's length. Columns at and past the length are not looked
    at.
    """
    check.tensor("logits", logits, (torch.float32,), (None, None), check.device_of("logits", logits))
    check.tensor("lengths", lengths, (torch.int32,), (logits.shape[0],), logits.device)
    check.within("lengths", lengths, 0, logits.shape[1])
    check.integer("k", k, 1)
    return backends.run("topk", phase, logits.device).topk(logits, lengths, k, by_position)


def topk_slots(
    logits: Tensor,
    lengths: Tensor,
    k: int,
    page_table: Tensor,
    *,
    page_slots: int,
    row_to_seq: Tensor | None = None,
    by_position: bool = False,
    phase: Phase | None = None,
) -> tuple[Tensor, Tensor]:
    """`topk` and, int64 [T, k], the pool slots of what it selects (-1 stays -1), in one launch.

    `page_table` int32 [S, P] and `row_to_seq` int32 [T] as in `paged_logits`; pages of `page_slots` slots.
    """
    device = check.device_of("logits", logits)
    check.tensor("logits", logits, (torch.float32,), (None, None), device)
    rows = logits.shape[0]
    check.tensor("lengths", lengths, (torch.int32,), (rows,), device)
    check.integer("k", k, 1)
    check.integer("page_slots", page_slots, 1)
    check.tensor("page_table", page_table, (torch.int32,), (rows if row_to_seq is None else None, None), device)
    check.within("lengths", lengths, 0, min(logits.shape[1], page_table.shape[1] * page_slots))
    if row_to_seq is not None:
        check.tensor("row_to_seq", row_to_seq, (torch.int32,), (rows,), device)
        check.within("row_to_seq", row_to_seq, 0, page_table.shape[0] - 1)
    backend = backends.run("topk_slots", phase, device)
    return backend.topk_slots(logits, lengths, k, page_table, row_to_seq, page_slots, by_position)
