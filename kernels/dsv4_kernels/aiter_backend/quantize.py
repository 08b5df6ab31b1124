"""Queries and keys through AITER: one launch each for RoPE, Hadamard, quantisation and the store."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.aiter_backend import limits
from dsv4_kernels.aiter_backend.functions import KEYS, QUERY, fp4x2
from dsv4_kernels.formats import GROUP
from dsv4_kernels.layout import GROUPS, HEAD_DIM
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

ROPE_DIM = 64
HEADS_PER_COLUMN = 16
COLUMNS = 4
"""Scale columns are padded to a multiple of this."""


def quantize_query(q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, spec: IndexSpec) -> Query:
    """See `ops.quantize_query`; bfloat16 or float16 only, `cos` and `sin` in the dtype of `q`."""
    limits.require_spec(spec)
    _require_inputs("q", q, cos, sin)
    rows, heads, _ = q.shape
    columns = -(-heads // (HEADS_PER_COLUMN * COLUMNS)) * COLUMNS
    payload = torch.empty(rows, heads, HEAD_DIM // 2, dtype=torch.uint8, device=q.device)
    scale = torch.zeros(rows, 1, GROUPS, HEADS_PER_COLUMN, columns, dtype=torch.uint8, device=q.device)
    if rows:
        QUERY(
            payload.view(fp4x2()),
            q,
            cos,
            sin,
            positions,
            rope_dim=ROPE_DIM,
            out_scale=scale,
            group_size=GROUP,
            shuffle_scale=True,
            do_rotate_act=spec.hadamard,
        )
    return Query(spec, heads, payload=payload, scale=scale)


def write_index_keys(
    pool: IndexPool,
    k: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
) -> None:
    """See `ops.write_index_keys`; bfloat16 or float16 only, `norm_weight`, `cos` and `sin` in the dtype of `k`."""
    limits.require_pool(pool)
    _require_inputs("k", k, cos, sin)
    limits.require_dtype("norm_weight", norm_weight, (k.dtype,))
    if not k.shape[0]:
        return
    KEYS(
        pool.payload.view(fp4x2()),
        pool.scale,
        k.unsqueeze(1),
        norm_weight,
        cos,
        sin,
        positions,
        slots,
        norm_eps,
        rope_dim=ROPE_DIM,
        kv_block_size=pool.spec.layout.page_slots,
        group_size=GROUP,
        shuffle_scale=True,
        do_rotate_act=pool.spec.hadamard,
    )


def _require_inputs(name: str, x: Tensor, cos: Tensor, sin: Tensor) -> None:
    limits.require_dtype(name, x, limits.INPUTS)
    limits.require_contiguous(name, x)
    for angle, value in (("cos", cos), ("sin", sin)):
        limits.require_dtype(angle, value, (x.dtype,))
        limits.require_contiguous(angle, value)
