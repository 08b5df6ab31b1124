"""Host side of the gfx950 paged logits: check, choose a variant, launch."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.gfx950 import compiled
from dsv4_kernels.layout import SPLIT8, SPLIT64
from dsv4_kernels.pool import IndexPool, Query
from dsv4_kernels.registry import ROWS_PER_WAVE, logits_name

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
    """Launch one variant into `out` float32 [T, n]; returns the compiled kernel where Triton compiled it.

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
    layout = pool.spec.layout
    dense = pool.payload_stride == layout.payload_spec.bytes_per_page
    dense = dense and pool.scale_stride == layout.scale_spec.bytes_per_page
    arguments: dict[str, Tensor | int | float] = {
        "q_ptr": query.payload,
        "q_scale_ptr": query.scale,
        "payload_ptr": pool.payload,
        "scale_ptr": pool.scale,
        "table_ptr": page_table,
        "weights_ptr": weights,
        "seq_ptr": row_to_seq if row_to_seq is not None else ends,
        "starts_ptr": starts if starts is not None else ends,
        "ends_ptr": ends,
        "out_ptr": out,
        "rows": rows,
        "payload_stride": pool.payload_stride // 16,
        "scale_stride": pool.scale_stride // 4,
        "stride_table": page_table.stride(0),
        "stride_weights": weights.stride(0),
        "stride_out": out.stride(0),
        "weight_scale": weight_scale,
        "split_shift": shift,
    }
    shared, windowed = row_to_seq is not None, starts is not None
    store = compiled.active()
    if store is not None:
        if weights.dtype != torch.bfloat16:
            raise ArgumentError("weights.dtype", weights.dtype, "torch.bfloat16 with kernels compiled ahead of time")
        choice = {"shared": shared, "windowed": windowed, "dense": dense, "fast": fast, "page8": layout == SPLIT8}
        name = logits_name(query.heads, rows_per_wave, **choice)
        store.launch(name, (blocks, 1 << shift, 1), arguments)
        return None
    from dsv4_kernels.gfx950.logits_kernel import paged_logits_kernel

    return paged_logits_kernel[(blocks, 1 << shift)](
        **arguments,
        HEADS=query.heads,
        COLUMNS=query.scale.shape[-1],
        R=rows_per_wave,
        SHARED=shared,
        WINDOWED=windowed,
        FAST=fast,
        PAGE8=layout == SPLIT8,
        DENSE=dense,
        num_warps=1,
        enable_fp_fusion=True,
    )


def rows_per_wave(heads: int, row_to_seq: Tensor | None) -> int:
    """Rows that share a wave: their queries and weights must fit its registers."""
    return 1 if row_to_seq is None else ROWS_PER_WAVE.get(heads, 1)


def _check(query: Query, pool: IndexPool) -> None:
    if pool.spec.layout not in (SPLIT64, SPLIT8):
        name = repr(pool.spec.layout.name)
        raise ArgumentError("pool.spec.layout", name, "'split64' or 'split8' on the gfx950 backend")
    if query.heads not in ROWS_PER_WAVE:
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
