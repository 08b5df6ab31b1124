"""The operations of the FP4 indexer: one signature each, checked here, run by the backend that `backends`
selected.

Index vectors have 128 dimensions; RoPE turns the last 64 as interleaved pairs. A compressed token is one
index key. All checks raise `errors.ArgumentError`; two sides with different formats raise
`errors.LayoutMismatchError`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import backends, check
from dsv4_kernels.candidates import CandidateTable, candidate_blocks, candidate_positions, candidate_table
from dsv4_kernels.compress_ops import compress_index_keys, compress_kv, compress_tokens
from dsv4_kernels.counters import Phase
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.kv_ops import dequantize_kv, norm_rope_store_kv, store_kv
from dsv4_kernels.layout import HEAD_DIM
from dsv4_kernels.linear import linear_float32
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.router import router_gate, router_partials
from dsv4_kernels.schedules import decode_schedule, guarded_page_table, prefill_schedule, row_groups
from dsv4_kernels.selection import topk, topk_slots

ROPE_PAIRS = 32


def quantize_query(
    q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, spec: IndexSpec, phase: Phase | None = None
) -> Query:
    """RoPE, Hadamard if the spec says so, quantise; float32 throughout, but for what the convention rounds.

    `q` float [T, H, 128], H a multiple of 16 up to 128; `cos`, `sin` float [max_position, 32]; `positions`
    int64 [T].
    """
    check.tensor("q", q, check.FLOATS, (None, None, HEAD_DIM), check.device_of("q", q))
    _heads(q.shape[1])
    _angles(cos, sin, positions, q.shape[0], q.device)
    check.within("positions", positions, 0, cos.shape[0] - 1)
    return backends.run("quantize_query", phase, q.device).quantize_query(q, cos, sin, positions, spec)


def quantize_query_with_weights(
    q: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    weights: Tensor,
    *,
    weight_scale: float,
    spec: IndexSpec,
    phase: Phase | None = None,
) -> tuple[Query, Tensor]:
    """`quantize_query` and the head weights in one launch: bfloat16 [T, H] `bf16(bf16(weights) * weight_scale)`."""
    check.tensor("q", q, check.FLOATS, (None, None, HEAD_DIM), check.device_of("q", q))
    _heads(q.shape[1])
    _angles(cos, sin, positions, q.shape[0], q.device)
    check.within("positions", positions, 0, cos.shape[0] - 1)
    check.tensor("weights", weights, check.FLOATS, (q.shape[0], q.shape[1]), q.device)
    check.finite("weight_scale", weight_scale)
    backend = backends.run("quantize_query_with_weights", phase, q.device)
    return backend.quantize_query_with_weights(q, cos, sin, positions, weights, weight_scale, spec)


def write_index_keys(
    pool: IndexPool,
    k: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    *,
    phase: Phase | None = None,
) -> None:
    """RMSNorm, RoPE, Hadamard if the pool says so, quantise, scatter to the pool.

    `k` float [n, 128], `norm_weight` float [128], `positions` and `slots` int64 [n]. A slot of -1 skips its
    row, whose position is not looked at. Slots of one call must differ.
    """
    device = pool.device
    check.tensor("k", k, check.FLOATS, (None, HEAD_DIM), device)
    check.tensor("norm_weight", norm_weight, check.FLOATS, (HEAD_DIM,), device)
    check.finite("norm_eps", norm_eps, 0)
    _angles(cos, sin, positions, k.shape[0], device)
    check.tensor("slots", slots, (torch.int64,), (k.shape[0],), device)
    check.within("slots", slots, -1, pool.tokens - 1)
    if device.type == "cpu":
        check.within("positions", positions[slots >= 0], 0, cos.shape[0] - 1)
    backend = backends.run("write_index_keys", phase, device)
    backend.write_index_keys(pool, k, norm_weight, norm_eps, cos, sin, positions, slots)


def paged_logits(
    query: Query,
    pool: IndexPool,
    weights: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    *,
    weight_scale: float,
    max_seq_len: int,
    row_to_seq: Tensor | None = None,
    starts: Tensor | None = None,
    phase: Phase | None = None,
    accumulate: torch.dtype = torch.float32,
    table_slots: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """float32 [T, max_seq_len]: `weight_scale * sum_h weights[t, h] * relu(<q[t, h], k[s]>)` for s <
    `lengths[t]`.

    `weights` float [T, H]; `page_table` int32 [S, P], row t reads row `row_to_seq[t]` of it (int32 [T]), or
    row t itself without `row_to_seq`; rows of one sequence should stand together, they share its keys.
    `lengths` int32 [T] counts the compressed keys 0.. that a row sees; table entries past them are never
    read.

    `starts` int32 [T] opens a window: row t sees keys `starts[t]..lengths[t] - 1` only, if any.

    With `table_slots` an entry of the table names so many keys inside a page: block b of page p, of those that the page
    holds, is entry `p * (page_slots / table_slots) + b` (`candidate_table`). Nothing outside a row's blocks is read;
    columns are then keys of its table.

    Columns that a row does not see are -inf from the reference backend and unwritten by the others; `topk`
    never reads them. `out`, float32 [T, max_seq_len], takes the logits and is returned.
    `accumulate=torch.float64` is for oracles and needs the reference backend.
    """
    call = LogitsCall(
        query=query,
        pool=pool,
        weights=weights,
        page_table=page_table,
        lengths=lengths,
        weight_scale=weight_scale,
        max_seq_len=max_seq_len,
        row_to_seq=row_to_seq,
        starts=starts,
        accumulate=accumulate,
        table_slots=table_slots,
        out=out,
    )
    need_reference = accumulate is torch.float64
    return backends.run("paged_logits", phase, pool.device, need_reference=need_reference).paged_logits(call)


def rowgroup_logits(
    query: Query,
    pool: IndexPool,
    weights: Tensor,
    page_table: Tensor,
    lengths: Tensor,
    query_start_loc: Tensor,
    *,
    max_query_len: int,
    weight_scale: float,
    max_seq_len: int,
    phase: Phase | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """`paged_logits` of rows that stand grouped by sequence and share its key loads.

    Rows `query_start_loc[s]..query_start_loc[s + 1] - 1`, at most `max_query_len`, read row s of `page_table` int32
    [S, P]; `query_start_loc` int32 [S + 1] ascends from 0 to T. Pools of 64-slot and of 8-slot pages. Its backend is
    selected on its own: AITER has had a kernel for it only since its #6145.
    """
    check.tensor("page_table", page_table, (torch.int32,), (None, None), pool.device)
    check.tensor("query_start_loc", query_start_loc, (torch.int32,), (page_table.shape[0] + 1,), pool.device)
    check.integer("max_query_len", max_query_len, 1)
    seqs: Tensor | None = None
    if max_query_len > 1 or page_table.shape[0] != query.rows:
        row = torch.arange(query.rows, dtype=torch.int32, device=pool.device)
        seqs = torch.searchsorted(query_start_loc, row, right=True, out_int32=True).sub_(1).clamp_(min=0)
    call = LogitsCall(
        query=query,
        pool=pool,
        weights=weights,
        page_table=page_table,
        lengths=lengths,
        weight_scale=weight_scale,
        max_seq_len=max_seq_len,
        row_to_seq=seqs,
        query_start_loc=query_start_loc,
        max_query_len=max_query_len,
        out=out,
    )
    return backends.run("rowgroup_logits", phase, pool.device).rowgroup_logits(call)


def readback(pool: IndexPool, slots: Tensor) -> Tensor:
    """float32 [n, 128]: the dequantised keys at int64 `slots` [n], for debugging and self-tests."""
    check.tensor("slots", slots, (torch.int64,), (None,), pool.device)
    check.within("slots", slots, 0, pool.tokens - 1)
    return backends.run("readback", None, pool.device).readback(pool, slots)


def _heads(heads: int) -> None:
    if heads % 16 or not 16 <= heads <= 128:
        raise ArgumentError("q.shape[1]", heads, "a multiple of 16 heads from 16 to 128")


def _angles(cos: Tensor, sin: Tensor, positions: Tensor, rows: int, device: torch.device) -> None:
    check.tensor("cos", cos, check.FLOATS, (None, ROPE_PAIRS), device)
    check.tensor("sin", sin, check.FLOATS, (cos.shape[0], ROPE_PAIRS), device)
    check.tensor("positions", positions, (torch.int64,), (rows,), device)


__all__ = [
    "CandidateTable",
    "candidate_blocks",
    "candidate_positions",
    "candidate_table",
    "compress_index_keys",
    "compress_kv",
    "compress_tokens",
    "decode_schedule",
    "dequantize_kv",
    "guarded_page_table",
    "linear_float32",
    "norm_rope_store_kv",
    "paged_logits",
    "prefill_schedule",
    "quantize_query",
    "quantize_query_with_weights",
    "readback",
    "router_gate",
    "router_partials",
    "row_groups",
    "rowgroup_logits",
    "store_kv",
    "topk",
    "topk_slots",
    "write_index_keys",
]
