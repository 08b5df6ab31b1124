"""Paged logits through AITER: its decode kernel for single rows, its prefill kernel for windows and shared sequences,
its row-group kernel for row groups.

Schedules come from our own operation, with the bytes that AITER's kernels read: AITER's schedule kernel does not
compile in useful time past 128 rows. Page tables get guard columns, because its decode loop reads ahead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import schedules
from dsv4_kernels.aiter_backend import limits
from dsv4_kernels.aiter_backend.functions import DECODE, PLAN, PREFILL, ROWGROUP
from dsv4_kernels.dispatch import THRESHOLDS
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.layout import SPLIT8
from dsv4_kernels.logits_call import LogitsCall

WARPS = 4


def paged_logits(call: LogitsCall) -> Tensor:
    """See `ops.paged_logits`; bfloat16 weights only. Columns that a row does not see stay unwritten."""
    call.require_whole_pages("aiter")
    pool, lengths = call.pool, call.lengths
    limits.require_pool(pool)
    limits.require_dtype("weights", call.weights, (torch.bfloat16,))
    limits.require_contiguous("weights", call.weights)
    payload, scale = call.packed("aiter")
    out = call.output()
    if not call.rows:
        return out
    keys = (pool.payload, pool.scale, schedules.guarded_page_table(call.page_table), call.weights)
    options = {
        "weight_scale": call.weight_scale,
        "block_k": THRESHOLDS.chunk,
        "kv_block_size": pool.spec.layout.page_slots,
        "num_warps": WARPS,
        "out": out,
    }
    width = call.max_seq_len
    if call.row_to_seq is None and call.starts is None:
        plan = schedules.decode_schedule(lengths, max_seq_len=width)
        q, q_scale = payload.unsqueeze(1), scale.unsqueeze(1)
        DECODE(q, q_scale, *keys, lengths, width, next_n=1, cta_info=plan, total_ctas=len(plan), **options)
        return out
    rows = call.row_to_seq
    if rows is None:
        rows = torch.arange(call.rows, dtype=torch.int32, device=pool.device)
    opened = torch.zeros_like(lengths) if call.starts is None else torch.minimum(call.starts, lengths)
    plan = schedules.prefill_schedule(opened, lengths, rows, max_seq_len=width)
    PREFILL(payload, scale, *keys, rows, opened, lengths, width, cta_info=plan, n_ctas=len(plan), **options)
    return out


def rowgroup_logits(call: LogitsCall) -> Tensor:
    """See `ops.rowgroup_logits`; bfloat16 weights only. Columns that a row does not see stay unwritten."""
    limits.require_pool(call.pool, rowgroup=True)
    limits.require_dtype("weights", call.weights, (torch.bfloat16,))
    limits.require_contiguous("weights", call.weights)
    payload, scale = call.packed("aiter")
    out = call.output()
    if call.query_start_loc is None:
        raise ArgumentError("query_start_loc", None, "int32 [S + 1]: a row group")
    if not call.rows:
        return out
    page_slots = call.pool.spec.layout.page_slots
    sizes = {"page_size": page_slots, "max_seq_len": call.max_seq_len, "pages_per_block": 1}
    seqs = call.query_start_loc.shape[0] - 1
    plan = PLAN(num_seqs=seqs, max_qlen=call.max_query_len, num_rows=call.rows, heads=call.heads, **sizes)
    ROWGROUP(
        payload.unsqueeze(1),
        scale.unsqueeze(1),
        call.pool.payload.flatten(1) if page_slots == SPLIT8.page_slots else call.pool.payload,
        call.pool.scale.flatten(1) if page_slots == SPLIT8.page_slots else call.pool.scale,
        schedules.guarded_page_table(call.page_table),
        call.weights,
        None,
        call.max_seq_len,
        weight_scale=call.weight_scale,
        kv_block_size=page_slots,
        out=out,
        row_ends=call.lengths,
        query_start_loc=call.query_start_loc,
        max_query_len=call.max_query_len,
        pages_per_block=1,
        plan=plan,
    )
    return out
