"""Host side of the gfx950 paged logits: check, choose a variant, launch."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.gfx950.logits_kernel import paged_logits_kernel
from dsv4_kernels.layout import SPLIT64
from dsv4_kernels.pool import IndexPool, Query

HEADS = (16, 32, 64, 128)
WAVES = 4096
"""Waves to aim for: 256 compute units, four SIMDs each, four waves a SIMD."""


def launch(
    query: Query,
    pool: IndexPool,
    weights: Tensor,
    page_table: Tensor,
    ends: Tensor,
    row_to_seq: Tensor | None,
    starts: Tensor | None,
    weight_scale: float,
    out: Tensor,
    *,
    rows_per_wave: int,
    fast: bool,
    splits: int | None = None,
) -> object:
    """Launch one variant into `out` float32 [T, n] and return the compiled kernel.

    `rows_per_wave` 1, 2 or 4 consecutive rows share a wave, and their keys where they belong to one sequence. `fast`
    reads matrix results in inline assembly. `splits` waves, a power of two, share a row's pages.
    """
    _check(query, pool)
    rows = query.rows
    assert query.payload is not None
    assert query.scale is not None
    blocks = -(-rows // rows_per_wave)
    if splits is None:
        splits = max(1, min(WAVES // blocks, -(-out.shape[1] // 64)))
    shift = splits.bit_length() - 1
    dense = pool.payload_stride == SPLIT64.payload_spec.bytes_per_page
    dense = dense and pool.scale_stride == SPLIT64.scale_spec.bytes_per_page
    return paged_logits_kernel[(blocks, 1 << shift)](
        query.payload,
        query.scale,
        pool.payload,
        pool.scale,
        page_table,
        weights,
        row_to_seq if row_to_seq is not None else ends,
        starts if starts is not None else ends,
        ends,
        out,
        rows,
        pool.payload_stride,
        pool.scale_stride,
        page_table.stride(0),
        weights.stride(0),
        out.stride(0),
        weight_scale,
        shift,
        HEADS=query.heads,
        COLUMNS=query.scale.shape[-1],
        R=rows_per_wave,
        SHARED=row_to_seq is not None,
        WINDOWED=starts is not None,
        FAST=fast,
        DENSE=dense,
        num_warps=1,
        enable_fp_fusion=True,
    )


def rows_per_wave(heads: int, row_to_seq: Tensor | None) -> int:
    """Rows that share a wave: their queries and weights must fit its registers."""
    return 1 if row_to_seq is None else {16: 4, 32: 4, 64: 2, 128: 1}[heads]


def _check(query: Query, pool: IndexPool) -> None:
    if pool.spec.layout != SPLIT64:
        raise ArgumentError("pool.spec.layout", repr(pool.spec.layout.name), "'split64' on the gfx950 backend")
    if query.heads not in HEADS:
        raise ArgumentError("query.heads", query.heads, "16, 32, 64 or 128 on the gfx950 backend")


def paged_logits(
    fast: bool,
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
    """See `ops.paged_logits`. Columns that a row does not see stay unwritten."""
    if accumulate is not torch.float32:
        raise ArgumentError("accumulate", accumulate, "torch.float32 on the gfx950 backend")
    out = torch.empty(query.rows, max_seq_len, dtype=torch.float32, device=pool.device)
    if query.rows:
        launch(
            query,
            pool,
            weights.float() if weights.dtype == torch.float64 else weights,
            page_table,
            lengths,
            row_to_seq,
            starts,
            weight_scale,
            out,
            rows_per_wave=rows_per_wave(query.heads, row_to_seq),
            fast=fast,
        )
    return out
