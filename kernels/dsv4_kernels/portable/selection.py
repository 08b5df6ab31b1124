"""Top-k by radix selection: reads only live columns, the lowest index wins ties, exact for every float."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
LOWEST = tl.constexpr(-(2**63))


@triton.jit
def _ordered(x):
    """int32 in the order of float32 `x`; both zeros are equal, NaN ranks as -inf."""
    x = tl.where(x != x, float("-inf"), x)
    x = tl.where(x == 0.0, 0.0, x)
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _threshold(row_ptr, length, need, BLOCK: tl.constexpr):
    """The `need`-th largest key of a row, as uint32, and how many columns equal to it are wanted."""
    prefix = tl.zeros((), tl.uint32)
    known = tl.zeros((), tl.uint32)
    bins = tl.arange(0, 512)
    for digit in tl.static_range(4):
        counts = tl.zeros((512,), tl.int32)
        for base in range(0, length, BLOCK):
            column = base + tl.arange(0, BLOCK)
            key = _ordered(tl.load(row_ptr + column, mask=column < length, other=0.0)).to(tl.uint32, bitcast=True)
            key = key ^ 0x80000000
            inside = (column < length) & ((key & known) == prefix)
            # Bin 256 takes what is outside.
            counts += tl.histogram(tl.where(inside, (key >> (24 - 8 * digit)) & 255, 256).to(tl.int32), 512)
        counts = tl.where(bins < 256, counts, 0)
        at_least = tl.sum(counts) - tl.cumsum(counts, 0) + counts
        found = tl.max(tl.where((at_least >= need) & (bins < 256), bins, 0))
        need = need - tl.sum(tl.where(bins > found, counts, 0))
        prefix = prefix | (found.to(tl.uint32) << (24 - 8 * digit))
        known = known | (255 << (24 - 8 * digit))
    return prefix, need


@triton.jit
def _topk_kernel(
    logits_ptr,
    lengths_ptr,
    out_ptr,
    scratch_ptr,
    slots_ptr,
    table_ptr,
    seq_ptr,
    stride_logits,
    stride_table,
    page_slots,
    K: tl.constexpr,
    K_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    ASCENDING: tl.constexpr,
    SLOTS: tl.constexpr,
    SHARED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_ptr + row)
    row_ptr = logits_ptr + row * stride_logits
    scratch = scratch_ptr + row * K_PADDED
    chosen = tl.minimum(length, K)
    threshold, ties = _threshold(row_ptr, length, chosen, BLOCK)
    taken = tl.zeros((), tl.int32)
    equal_seen = tl.zeros((), tl.int32)
    for base in range(0, length, BLOCK):
        column = base + tl.arange(0, BLOCK)
        live = column < length
        order = _ordered(tl.load(row_ptr + column, mask=live, other=0.0))
        key = order.to(tl.uint32, bitcast=True) ^ 0x80000000
        equal = (live & (key == threshold)).to(tl.int32)
        rank = equal_seen + tl.cumsum(equal, 0)
        take = (live & (key > threshold)) | ((equal == 1) & (rank <= ties))
        place = taken + tl.cumsum(take.to(tl.int32), 0) - 1
        index = column.to(tl.int64)
        value = index if ASCENDING else (order.to(tl.int64) << 32) | (0xFFFFFFFF - index)
        tl.store(scratch + place, value, mask=take)
        taken += tl.sum(take.to(tl.int32))
        equal_seen += tl.sum(equal)
    # Other threads of this program wrote what is read next.
    tl.debug_barrier()
    j = tl.arange(0, K_PADDED)
    if ASCENDING:
        index = tl.sort(tl.load(scratch + j, mask=j < chosen, other=0x7FFFFFFF))
    else:
        best = tl.sort(tl.load(scratch + j, mask=j < chosen, other=LOWEST), descending=True)
        index = 0xFFFFFFFF - (best & 0xFFFFFFFF)
    index = tl.where(j < chosen, index, -1)
    tl.store(out_ptr + row * K + j, index.to(tl.int32), mask=j < K)
    if SLOTS:
        seq = tl.load(seq_ptr + row).to(tl.int64) if SHARED else row
        valid = j < chosen
        page = tl.load(table_ptr + seq * stride_table + index // page_slots, mask=valid, other=0).to(tl.int64)
        slot = page * page_slots + index % page_slots
        tl.store(slots_ptr + row * K + j, tl.where(valid, slot, -1), mask=j < K)


@triton.jit
def _block_score_kernel(
    logits_ptr, lengths_ptr, scores_ptr, stride_logits, blocks, B: tl.constexpr, SIZE: tl.constexpr
):
    """Maximum of each block of SIZE columns; +inf for the newest, -inf where nothing is live."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths_ptr + row)
    block = tl.program_id(1) * B + tl.arange(0, B)
    column = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(logits_ptr + row * stride_logits + column, mask=column < length, other=float("-inf"))
    best = tl.max(tl.where(x != x, float("-inf"), x), axis=1)
    best = tl.where(block == (length + SIZE - 1) // SIZE - 1, float("inf"), best)
    tl.store(scores_ptr + row * blocks + block, best, mask=block < blocks)


def _launch(
    logits: Tensor,
    lengths: Tensor,
    k: int,
    ascending: bool,
    page_table: Tensor | None = None,
    row_to_seq: Tensor | None = None,
    page_slots: int = 1,
) -> tuple[Tensor, Tensor]:
    rows, device = logits.shape[0], logits.device
    padded = triton.next_power_of_2(max(k, 2))
    out = torch.empty(rows, k, dtype=torch.int32, device=device)
    slots = torch.empty(rows, k if page_table is not None else 0, dtype=torch.int64, device=device)
    scratch = torch.empty(rows, padded, dtype=torch.int64, device=device)
    if rows:
        _topk_kernel[(rows,)](
            logits,
            lengths,
            out,
            scratch,
            slots,
            page_table if page_table is not None else lengths,
            row_to_seq if row_to_seq is not None else lengths,
            logits.stride(0),
            page_table.stride(0) if page_table is not None else 0,
            page_slots,
            K=k,
            K_PADDED=padded,
            BLOCK=BLOCK,
            ASCENDING=ascending,
            SLOTS=page_table is not None,
            SHARED=row_to_seq is not None,
            num_warps=8 if padded >= 1024 else 4,
            enable_fp_fusion=False,
        )
    return out, slots


def topk(logits: Tensor, lengths: Tensor, k: int, by_position: bool) -> Tensor:
    """See `ops.topk`."""
    return _launch(logits, lengths, k, by_position)[0]


def topk_slots(
    logits: Tensor,
    lengths: Tensor,
    k: int,
    page_table: Tensor,
    row_to_seq: Tensor | None,
    page_slots: int,
    by_position: bool,
) -> tuple[Tensor, Tensor]:
    """See `ops.topk_slots`."""
    return _launch(logits, lengths, k, by_position, page_table, row_to_seq, page_slots)


def candidate_blocks(logits: Tensor, lengths: Tensor, count: int, block: int) -> Tensor:
    """See `candidates.candidate_blocks`."""
    rows, columns = logits.shape
    blocks = triton.cdiv(columns, block)
    scores = torch.empty(rows, max(blocks, 1), dtype=torch.float32, device=logits.device)
    if rows and blocks:
        grid = (rows, triton.cdiv(blocks, 128))
        _block_score_kernel[grid](
            logits, lengths, scores, logits.stride(0), scores.shape[1], B=128, SIZE=block, enable_fp_fusion=False
        )
    reach = (lengths + (block - 1)) // block
    return _launch(scores, reach.int(), count, ascending=True)[0]
