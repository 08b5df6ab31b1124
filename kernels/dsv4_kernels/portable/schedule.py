"""Decode and prefill schedules in two launches whose registers do not grow with the number of rows."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 1024
SLOTS = 256


@triton.jit
def _needed(lengths_ptr, rows, per_cta, chunk, ROWS: tl.constexpr):
    """Workgroups that all rows need when each takes `per_cta` chunks."""
    total = tl.zeros((), tl.int64)
    for base in range(0, rows, ROWS):
        row = base + tl.arange(0, ROWS)
        length = tl.load(lengths_ptr + row, mask=row < rows, other=0)
        chunks = (length + chunk - 1) // chunk
        total += tl.sum(((chunks + per_cta - 1) // per_cta).to(tl.int64))
    return total


@triton.jit
def _prepare_kernel(lengths_ptr, plan_ptr, rows, most, ctas, chunk, ROWS: tl.constexpr):
    """plan[0]: chunks a workgroup takes; plan[1 + r]: workgroups of rows 0..r."""
    low = tl.zeros((), tl.int32) + 1
    high = tl.zeros((), tl.int32) + most + 1
    while low < high:
        middle = (low + high) // 2
        fits = _needed(lengths_ptr, rows, middle, chunk, ROWS) <= ctas
        high = tl.where(fits, middle, high)
        low = tl.where(fits, low, middle + 1)
    longest = tl.zeros((), tl.int32)
    for base in range(0, rows, ROWS):
        row = base + tl.arange(0, ROWS)
        longest = tl.maximum(longest, tl.max(tl.load(lengths_ptr + row, mask=row < rows, other=0)))
    per_cta = tl.where(low <= most, low, tl.maximum((longest + chunk - 1) // chunk, 1))
    tl.store(plan_ptr, per_cta)
    before = tl.zeros((), tl.int32)
    for base in range(0, rows, ROWS):
        row = base + tl.arange(0, ROWS)
        length = tl.load(lengths_ptr + row, mask=row < rows, other=0)
        chunks = (length + chunk - 1) // chunk
        need = (chunks + per_cta - 1) // per_cta
        tl.store(plan_ptr + 1 + row, before + tl.cumsum(need, 0), mask=row < rows)
        before += tl.sum(need)


@triton.jit
def _slots_kernel(
    lengths_ptr, starts_ptr, seq_ptr, plan_ptr, info_ptr, rows, ctas, chunk, PREFILL: tl.constexpr, SLOTS: tl.constexpr
):
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    inside = slot < ctas
    per_cta = tl.load(plan_ptr)
    # The row of a slot is the number of rows whose workgroups end at or before it.
    low = tl.zeros((SLOTS,), tl.int32)
    high = tl.zeros((SLOTS,), tl.int32) + rows
    width = rows
    while width > 0:
        middle = (low + high) // 2
        open_ = low < high
        ended = tl.load(plan_ptr + 1 + middle, mask=open_, other=0) <= slot
        low = tl.where(open_ & ended, middle + 1, low)
        high = tl.where(open_ & (ended == 0), middle, high)
        width = width // 2
    used = inside & (low < rows)
    row = tl.where(used, low, 0)
    before = tl.load(plan_ptr + row, mask=used & (row > 0), other=0)
    length = tl.load(lengths_ptr + row, mask=used, other=0)
    first = (slot - before) * per_cta
    count = tl.minimum((length + chunk - 1) // chunk - first, per_cta)
    used = used & (count > 0)
    if PREFILL:
        out = info_ptr + slot.to(tl.int64) * 6
        tl.store(out, tl.where(used, row, 0), mask=inside)
        tl.store(out + 1, tl.load(seq_ptr + row, mask=used, other=0), mask=inside)
        tl.store(out + 2, tl.where(used, first, 0), mask=inside)
        tl.store(out + 3, tl.where(used, count, 1), mask=inside)
        tl.store(out + 4, tl.load(starts_ptr + row, mask=used, other=0), mask=inside)
        tl.store(out + 5, tl.where(used, length, 0), mask=inside)
    else:
        out = info_ptr + slot.to(tl.int64) * 4
        tl.store(out, tl.where(used, row, 0), mask=inside)
        tl.store(out + 1, tl.where(used, first, 0), mask=inside)
        tl.store(out + 2, tl.where(used, count, 1), mask=inside)
        tl.store(out + 3, tl.where(used, length, 0), mask=inside)


def _schedule(
    lengths: Tensor, starts: Tensor | None, seqs: Tensor | None, max_seq_len: int, ctas: int, chunk: int
) -> Tensor:
    rows = lengths.shape[0]
    lengths = lengths.contiguous()
    plan = torch.empty(rows + 1, dtype=torch.int32, device=lengths.device)
    info = torch.empty(ctas, 4 if starts is None else 6, dtype=torch.int32, device=lengths.device)
    _prepare_kernel[(1,)](
        lengths, plan, rows, max(1, -(-max_seq_len // chunk)), ctas, chunk, ROWS=ROWS, enable_fp_fusion=False
    )
    _slots_kernel[(triton.cdiv(ctas, SLOTS),)](
        lengths,
        starts if starts is not None else lengths,
        seqs if seqs is not None else lengths,
        plan,
        info,
        rows,
        ctas,
        chunk,
        PREFILL=starts is not None,
        SLOTS=SLOTS,
        enable_fp_fusion=False,
    )
    return info


def decode_schedule(lengths: Tensor, max_seq_len: int, ctas: int, chunk: int) -> Tensor:
    """See `schedules.decode_schedule`."""
    return _schedule(lengths, None, None, max_seq_len, ctas, chunk)


def prefill_schedule(
    row_to_seq: Tensor, starts: Tensor, ends: Tensor, max_seq_len: int, ctas: int, chunk: int
) -> Tensor:
    """See `schedules.prefill_schedule`."""
    return _schedule(ends, starts, row_to_seq, max_seq_len, ctas, chunk)
