"""Paged logits: one kernel for decode, prefill windows and row groups, in any FP4 layout; sm90 has another.

A program takes up to four consecutive rows and a share of their keys; rows of one sequence in it share each key load.
A table may name blocks inside pages instead of pages: then only the keys of those blocks are read.
Keys are the first operand of the scaled product; queries become bfloat16 once, exactly (e2m1 times a power of two).
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import logging
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels import counters
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.portable import device_math, sm90_check, sm90_logits
from dsv4_kernels.portable.addresses import payload_at, require_fp4, scale_at

log = logging.getLogger(__name__)

TILE = 64
PROGRAMS_PER_PROCESSOR = 4
INTERPRETER_PROGRAMS = 8
QUERY_COLUMNS = 128
"""Heads times rows of a program at most: what accumulators and queries leave of the registers."""

LEAST_COLUMNS = 32


# A table of any width and any number of rows run the same compilation.
@triton.jit(do_not_specialize=["rows", "bound", "stride_table", "stride_out", "splits"])
def _logits_kernel(
    q_ptr,
    qs_ptr,
    payload_ptr,
    scale_ptr,
    table_ptr,
    weights_ptr,
    seq_ptr,
    starts_ptr,
    ends_ptr,
    out_ptr,
    rows,
    bound,
    payload_stride,
    scale_stride,
    stride_table,
    stride_weights,
    stride_out,
    weight_scale,
    splits,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    COLUMNS: tl.constexpr,
    R: tl.constexpr,
    SHARED: tl.constexpr,
    WINDOWED: tl.constexpr,
    ENTRY: tl.constexpr,
    OF: tl.constexpr,
):
    first = (tl.program_id(0) // splits).to(tl.int64) * R
    split = tl.program_id(0) % splits
    member = tl.arange(0, R)
    row = first + member
    live = row < rows
    end = tl.minimum(tl.load(ends_ptr + row, mask=live, other=0), bound)
    start = tl.load(starts_ptr + row, mask=live, other=0) if WINDOWED else tl.zeros((R,), tl.int32)
    seq = tl.load(seq_ptr + row, mask=live, other=-1) if SHARED else row.to(tl.int32)
    live = live & (start < end)

    column = tl.arange(0, R * HEADS_PADDED)
    head = column % HEADS_PADDED
    q_row = first + column // HEADS_PADDED
    present = (head < HEADS) & (q_row < rows)
    d = tl.arange(0, 128)
    at = q_row * (HEADS * 64) + head * 64
    byte = tl.load(q_ptr + at[None, :] + (d // 2)[:, None], mask=present[None, :], other=0).to(tl.int32)
    at = q_row * (64 * COLUMNS) + (head % 16) * COLUMNS + head // 16
    at = at[None, :] + (d // 32 * (16 * COLUMNS))[:, None]
    exponent = tl.load(qs_ptr + at, mask=present[None, :], other=127).to(tl.int32)
    bits = tl.where(exponent == 0, 0x400000, tl.where(exponent == 255, 0x7FC00000, exponent << 23))
    q = device_math.decode((byte >> (d % 2 * 4)[:, None]) & 15) * bits.to(tl.float32, bitcast=True)
    q = q.to(tl.bfloat16)
    w = tl.load(weights_ptr + q_row * stride_weights + head, mask=present, other=0.0).to(tl.float32)

    n = tl.arange(0, 64)
    j = tl.arange(0, 64)
    c = tl.arange(0, 4)
    for lead in range(0, R):
        # Each run of rows of one sequence is taken once, at its first row.
        is_lead = member == lead
        lead_seq = tl.sum(tl.where(is_lead, seq, 0))
        before = tl.sum(tl.where(member == lead - 1, seq, 0)) if SHARED else -1
        run = live & (seq == lead_seq) & (member >= lead)
        if (lead == 0 or before != lead_seq) and lead_seq >= 0:
            low = tl.min(tl.where(run, start, 0x7FFFFFFF)) // 64
            high = tl.max(tl.where(run, end, 0))
            tiles = tl.maximum((high + 63) // 64 - low, 0)
            share = (tiles + splits - 1) // splits
            tile = low + split * share
            stop = tl.minimum(tile + share, low + tiles)
            table_row = table_ptr + lead_seq.to(tl.int64) * stride_table
            for t in range(tile, stop):
                position = t * 64 + n
                if OF.page_slots == ENTRY:
                    page = tl.load(table_row + position // ENTRY, mask=position < high, other=0).to(tl.int64)
                    o = position % ENTRY
                else:
                    # Lanes past the last key repeat it: nothing outside the row's blocks is read.
                    held = tl.minimum(position, high - 1)
                    block = tl.load(table_row + held // ENTRY)
                    page = (block // (OF.page_slots // ENTRY)).to(tl.int64)
                    o = block % (OF.page_slots // ENTRY) * ENTRY + held % ENTRY
                k_at = payload_at(o[:, None], j[None, :], OF)
                k = tl.load(payload_ptr + (page * payload_stride)[:, None] + k_at)
                s_at = scale_at(o[:, None], c[None, :], OF)
                ks = tl.load(scale_ptr + (page * scale_stride)[:, None] + s_at)
                score = tl.dot_scaled(k, ks, "e2m1", q, None, "bf16")
                score = tl.maximum(score, 0.0, propagate_nan=tl.PropagateNan.ALL) * w[None, :]
                total = tl.sum(tl.reshape(score, (64, R, HEADS_PADDED)), axis=2) * weight_scale
                seen = run[None, :] & (position[:, None] >= start[None, :]) & (position[:, None] < end[None, :])
                tl.store(out_ptr + (row * stride_out)[None, :] + position[:, None], total, mask=seen)


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _sm90_serves(device: torch.device) -> bool:
    """Whether `device` is an sm90 on which the kernels for it are right; told and counted once if they are not."""
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) != (9, 0):
        return False
    reason = sm90_check.mismatch(exact_logits, device, _processors(device))
    if reason:
        log.warning("paged_logits: %s, the exact kernel serves instead", reason)
        counters.count_fallback("paged_logits", reason)
    return not reason


def paged_logits(call: LogitsCall) -> Tensor:
    """See `ops.paged_logits`. Columns that a row does not see stay unwritten."""
    require_fp4(call.pool.spec)
    if not (call.rows and sm90_logits.covers(call) and _sm90_serves(call.pool.device)):
        return exact_logits(call)
    out = call.output()
    sm90_logits.launch(call, out, _processors(call.pool.device))
    return out


def exact_logits(call: LogitsCall) -> Tensor:
    """The kernel for every layout and device: products in bfloat16, which holds every scale, sums in float32."""
    pool, rows, heads = call.pool, call.rows, call.heads
    payload, scale = call.packed("portable")
    out = call.output()
    if not rows:
        return out
    padded = triton.next_power_of_2(heads)
    group = 1 if call.row_to_seq is None else max(1, min(4, QUERY_COLUMNS // padded))
    # With 16 columns Triton 3.9 compiles for gfx950 without a barrier between two uses of LDS; the emulator finds it.
    padded = max(padded, LEAST_COLUMNS // group)
    blocks = triton.cdiv(rows, group)
    on_gpu = pool.device.type == "cuda"
    programs = PROGRAMS_PER_PROCESSOR * _processors(pool.device) if on_gpu else INTERPRETER_PROGRAMS
    # A length on the GPU cannot be checked before.
    bound = min(call.max_seq_len, call.page_table.shape[1] * call.entry_slots)
    # The share of a program follows a row's own length, so its time does not depend on the width of the output.
    splits = max(1, min(programs // blocks, triton.cdiv(call.max_seq_len, TILE)))
    weights = call.float_weights
    _logits_kernel[(blocks * splits,)](
        payload,
        scale,
        pool.payload,
        pool.scale,
        call.page_table,
        weights,
        call.row_to_seq if call.row_to_seq is not None else call.lengths,
        call.starts if call.starts is not None else call.lengths,
        call.lengths,
        out,
        rows,
        bound,
        pool.payload_stride,
        pool.scale_stride,
        call.page_table.stride(0),
        weights.stride(0),
        out.stride(0),
        call.weight_scale,
        splits,
        HEADS=heads,
        HEADS_PADDED=padded,
        COLUMNS=scale.shape[-1],
        R=group,
        SHARED=call.row_to_seq is not None,
        WINDOWED=call.starts is not None,
        ENTRY=call.entry_slots,
        OF=pool.spec.layout,
        num_warps=4,
        num_stages=1,
        enable_fp_fusion=True,
    )
    return out
