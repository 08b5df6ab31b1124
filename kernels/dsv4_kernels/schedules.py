"""Launch plans: which workgroup scores what, which rows share keys, and page tables that may be read ahead.

`cta_info` tensors have the bytes that AITER's kernels read, so that a plan made here can be given to them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import backends, check
from dsv4_kernels.counters import Phase
from dsv4_kernels.dispatch import THRESHOLDS, decode_ctas
from dsv4_kernels.errors import ArgumentError


def decode_schedule(
    lengths: Tensor, *, max_seq_len: int, ctas: int | None = None, phase: Phase | None = None
) -> Tensor:
    """int32 [P, 4] of a decode launch: row, first chunk, chunks, length. Chunks are 256 compressed keys.

    `lengths` int32 [T]. P is `ctas` or follows `dispatch.decode_ctas`; it must be at least T. The chunks of a workgroup
    are the fewest with which P workgroups suffice. Slots past the last are (0, 0, 1, 0).
    """
    check.tensor("lengths", lengths, (torch.int32,), (None,), check.device_of("lengths", lengths))
    check.integer("max_seq_len", max_seq_len, 1)
    check.within("lengths", lengths, 0, max_seq_len)
    rows = _some_rows("lengths", lengths)
    total = decode_ctas(rows, max_seq_len) if ctas is None else ctas
    check.integer("ctas", total, rows)
    backend = backends.run("decode_schedule", phase, lengths.device)
    return backend.decode_schedule(lengths, max_seq_len, total, THRESHOLDS.chunk)


def prefill_schedule(
    starts: Tensor, ends: Tensor, row_to_seq: Tensor, *, max_seq_len: int, ctas: int | None = None
) -> Tensor:
    """int32 [P, 6] of a prefill launch: row, sequence, first chunk, chunks, window start, window end.

    `starts`, `ends`, `row_to_seq` int32 [T]. P is `ctas` or max(1024, T). Slots past the last are (0, 0, 0, 1, 0, 0).
    """
    device = check.device_of("ends", ends)
    check.tensor("ends", ends, (torch.int32,), (None,), device)
    rows = _some_rows("ends", ends)
    check.tensor("starts", starts, (torch.int32,), (rows,), device)
    check.tensor("row_to_seq", row_to_seq, (torch.int32,), (rows,), device)
    check.integer("max_seq_len", max_seq_len, 1)
    check.within("ends", ends, 0, max_seq_len)
    check.within("starts", starts, 0, max_seq_len)
    total = max(THRESHOLDS.prefill_ctas, rows) if ctas is None else ctas
    check.integer("ctas", total, rows)
    backend = backends.run("prefill_schedule", "prefill", device)
    return backend.prefill_schedule(row_to_seq, starts, ends, max_seq_len, total, THRESHOLDS.chunk)


def row_groups(query_start_loc: Tensor, rows: int) -> Tensor:
    """int32 [G, 3]: first row, row count (1 to `rows`) and sequence of each group of rows that share key loads.

    `query_start_loc` int32 [S + 1] ascending from 0: sequence s has the rows from entry s up to entry s + 1.
    """
    device = check.device_of("query_start_loc", query_start_loc)
    check.tensor("query_start_loc", query_start_loc, (torch.int32,), (None,), device)
    check.integer("rows", rows, 1)
    loc = query_start_loc.long()
    if not len(loc) or int(loc[0]) != 0 or bool((loc[1:] < loc[:-1]).any()):
        raise ArgumentError("query_start_loc", loc.tolist()[:8], "ascending row numbers from 0")
    groups = (loc[1:] - loc[:-1] + rows - 1) // rows
    seq = torch.repeat_interleave(torch.arange(len(groups), device=loc.device), groups)
    index = torch.arange(len(seq), device=loc.device) - (groups.cumsum(0) - groups)[seq]
    first = loc[seq] + index * rows
    count = torch.minimum(loc[seq + 1] - first, torch.tensor(rows, device=loc.device))
    return torch.stack([first, count, seq], 1).int()


def guarded_page_table(page_table: Tensor, *, bucket: int = THRESHOLDS.table_bucket) -> Tensor:
    """int32 [S, W + 4]: `page_table` int32 [S, P] with zeros up to W, a multiple of `bucket`, and 4 guard columns.

    Kernels that fetch page ids ahead, and kernels compiled per width, need this; ours read neither past a row's
    last page nor compile per width.
    """
    check.tensor("page_table", page_table, (torch.int32,), (None, None), check.device_of("page_table", page_table))
    check.integer("bucket", bucket, 1)
    width = max(-(-page_table.shape[1] // bucket) * bucket, bucket)
    out = page_table.new_zeros(page_table.shape[0], width + THRESHOLDS.table_guard)
    out[:, : page_table.shape[1]] = page_table
    return out


def _some_rows(name: str, value: Tensor) -> int:
    if not value.shape[0]:
        raise ArgumentError(f"{name}.shape", list(value.shape), "at least one row")
    return value.shape[0]
