"""Paged logits through AITER: its decode kernel for single rows, its prefill kernel for windows and shared sequences.

Schedules come from our own operation, with the bytes that AITER's kernels read: AITER's schedule kernel does not
compile in useful time past 128 rows. Page tables get guard columns, because its decode loop reads ahead.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import schedules
from dsv4_kernels.aiter_backend import limits
from dsv4_kernels.aiter_backend.functions import DECODE, PREFILL
from dsv4_kernels.dispatch import THRESHOLDS
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.pool import IndexPool, Query

WARPS = 4


def paged_logits(
    query: Query,
    pool: IndexPool,
    weights: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    row_to_seq: Tensor | None,
    starts: Tensor | None,
    weight_scale: float,
    max_seq_len: int,
    accumulate: torch.dtype,
) -> Tensor:
    """See `ops.paged_logits`; bfloat16 weights only. Columns that a row does not see stay unwritten."""
    limits.require_pool(pool)
    limits.require_dtype("weights", weights, (torch.bfloat16,))
    limits.require_contiguous("weights", weights)
    if query.payload is None or query.scale is None or accumulate is not torch.float32:
        raise ArgumentError("accumulate", accumulate, "torch.float32 and a packed query on the aiter backend")
    out = torch.empty(query.rows, max_seq_len, dtype=torch.float32, device=pool.device)
    if not query.rows:
        return out
    table = schedules.guarded_page_table(page_table)
    keys = (pool.payload, pool.scale, table, weights)
    options = {
        "weight_scale": weight_scale,
        "block_k": THRESHOLDS.chunk,
        "kv_block_size": pool.spec.layout.page_slots,
        "num_warps": WARPS,
        "out": out,
    }
    if row_to_seq is None and starts is None:
        plan = schedules.decode_schedule(lengths, max_seq_len=max_seq_len)
        q, scale = query.payload.unsqueeze(1), query.scale.unsqueeze(1)
        DECODE(q, scale, *keys, lengths, max_seq_len, next_n=1, cta_info=plan, total_ctas=len(plan), **options)
        return out
    rows = torch.arange(query.rows, dtype=torch.int32, device=pool.device) if row_to_seq is None else row_to_seq
    opened = torch.zeros_like(lengths) if starts is None else torch.minimum(starts, lengths)
    plan = schedules.prefill_schedule(opened, lengths, rows, max_seq_len=max_seq_len)
    q, scale = query.payload, query.scale
    PREFILL(q, scale, *keys, rows, opened, lengths, max_seq_len, cta_info=plan, n_ctas=len(plan), **options)
    return out
