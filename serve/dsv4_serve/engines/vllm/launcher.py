"""What vLLM 0.33.0 takes from AITER's module `pa_mqa_logits_mxfp4`, over our operations.

Our kernels cut each row by its own length and need no work descriptors. What a step's layers share is the request of
each row, so that is what a schedule holds here: made once, in the caller's buffer, whose address a graph keeps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dsv4_kernels import aiter_tensors, ops
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.layout import HEAD_DIM
from dsv4_serve.engines.vllm import tensors
from dsv4_serve.engines.vllm.candidate_pool import Gather, build_candidate_gather, score_blocks, slot_positions

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_kernels.counters import Phase
    from dsv4_kernels.pool import IndexPool, Query

SCHED_SLOT_CAP = 4096
"""vLLM's schedule buffer has four words a slot; ours takes one word a row."""
DENSE_BYTES = 256 << 20
"""Of dense logits at a time behind a gathered launch."""


def cache_format(num_heads: int, head_dim: int, page_entries: int) -> dict[str, int]:
    """The order of keys in a page that queries of `num_heads` heads read. Raises ArgumentError without a kernel."""
    if head_dim != HEAD_DIM:
        raise ArgumentError("head_dim", head_dim, str(HEAD_DIM))
    run = tensors.run_of(num_heads)
    of = tensors.spec(run, page_entries).layout
    return {"n_per_tile": run, "d_per_tile": 16, "scale_mode": 1, "scale_lanes": of.scale.lanes}


def select_config(num_heads: int, head_dim: int, next_n: int, page_entries: int) -> dict[str, int]:
    """Sizes vLLM's schedule buffer, whatever the step."""
    return {"target_wgs": SCHED_SLOT_CAP}


def build_schedule(
    context_lens: Tensor,
    next_n: int,
    num_heads: int,
    head_dim: int,
    page_entries: int,
    *,
    out: Tensor,
    row_ends: Tensor | None = None,
    max_model_len: int,
) -> Tensor | None:
    """The request of each row, int32 [requests * next_n] in `out`; None where a row is a request or `out` is short."""
    rows = context_lens.shape[0] * next_n
    if next_n == 1 or rows > out.numel():
        return None
    return _requests(context_lens.shape[0], next_n, out[:rows])


@dataclass(frozen=True, slots=True)
class _Rows:
    """The query rows of a launch: what each sees, and whose row of the page table it reads (None: its own)."""

    lengths: Tensor
    requests: Tensor | None
    phase: Phase


def paged_mxfp4_mqa_logits(
    q: Tensor,
    q_scale: Tensor,
    kv_cache: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    max_model_len: int,
    *,
    out_logits: Tensor,
    clean_logits: bool = True,
    row_ends: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    schedule: Tensor | None = None,
    calc_block_scores: bool = False,
    block_scores: Tensor | None = None,
    candidate_block_size: int = 0,
    use_gather: bool = False,
    candidates: Gather | None = None,
) -> Tensor:
    """`out_logits` float32 [rows, max_model_len]: `sum_h weights[t, h] * relu(<q[t, h], k[s]>)` of each row's keys.

    `q` uint8 [requests, next_n, H, 64], or [rows, H, 64] with `query_start_loc` int32 [requests + 1]; `q_scale` uint8
    [..., H, 4]; `kv_cache` uint8 [pages, entries, 1, 68]; `weights` float32 [rows, H]; `block_table` int32 [requests,
    blocks]. Row t sees the first `row_ends[t]` keys (int32), or all of its request. With `use_gather` columns are the
    slots of `candidates` and `row_ends` counts those. `block_scores` takes the best of each `candidate_block_size`
    columns. Columns that a row does not see are unwritten unless `clean_logits`.
    """
    pool = tensors.pool(kv_cache, tensors.run_of(q.shape[-2]))
    query = tensors.query(q, q_scale, pool.spec)
    rows = _rows(q, context_lens, row_ends, query_start_loc, schedule, use_gather)
    if clean_logits:
        out_logits.fill_(float("-inf"))
    if use_gather:
        if candidates is None:
            raise ArgumentError("candidates", None, "what build_candidate_gather gave, with use_gather")
        return _gathered(query, pool, weights, block_table, rows, candidates, out_logits)
    _score(query, pool, weights, block_table, rows, out_logits)
    if calc_block_scores:
        if block_scores is None:
            raise ArgumentError("block_scores", None, "a tensor, with calc_block_scores")
        score_blocks(out_logits, rows.lengths, candidate_block_size, block_scores)
    return out_logits


def _rows(
    q: Tensor,
    context_lens: Tensor,
    row_ends: Tensor | None,
    query_start_loc: Tensor | None,
    schedule: Tensor | None,
    gathered: bool,
) -> _Rows:
    if query_start_loc is not None:
        seqs = aiter_tensors.sequences(query_start_loc, q.shape[0])
        return _Rows(context_lens[seqs.long()] if row_ends is None else row_ends, seqs, "prefill")
    requests, next_n = q.shape[:2]
    if next_n == 1:
        return _Rows(context_lens if row_ends is None else row_ends, None, "decode")
    if row_ends is None:
        row_ends, _ = aiter_tensors.draft_rows(context_lens, next_n)
    seqs = schedule if schedule is not None else _requests(requests, next_n, context_lens.new_empty(requests * next_n))
    return _Rows(row_ends, seqs, "prefill" if gathered else "verify")


def _requests(requests: int, next_n: int, out: Tensor) -> Tensor:
    """`out` int32 [requests * next_n] with 0 next_n times, 1 next_n times and so on."""
    torch.arange(requests * next_n, dtype=torch.int32, device=out.device, out=out)
    return out.floor_divide_(next_n)


def _score(query: Query, pool: IndexPool, weights: Tensor, table: Tensor, rows: _Rows, out: Tensor) -> None:
    ops.paged_logits(
        query,
        pool,
        weights,
        table,
        rows.lengths,
        weight_scale=1.0,
        max_seq_len=out.shape[1],
        row_to_seq=rows.requests,
        phase=rows.phase,
        out=out,
    )


def _gathered(
    query: Query, pool: IndexPool, weights: Tensor, table: Tensor, rows: _Rows, candidates: Gather, out: Tensor
) -> Tensor:
    """Dense logits of some rows at a time, of which the pool's columns are kept."""
    assert query.payload is not None
    assert query.scale is not None
    last = candidates["positions"].amax(1) + candidates["block"]
    width = table.shape[1] * pool.spec.layout.page_slots
    lengths = last.clamp(max=width).int().masked_fill(rows.lengths == 0, 0)
    columns = slot_positions(candidates, out.shape[1])
    step = max(1, DENSE_BYTES // (4 * width))
    dense = torch.empty(min(step, query.rows), width, dtype=torch.float32, device=pool.device)
    for first in range(0, query.rows, step):
        part = slice(first, min(first + step, query.rows))
        some = type(query)(pool.spec, query.heads, payload=query.payload[part], scale=query.scale[part])
        own = rows.requests is None
        requests = None if rows.requests is None else rows.requests[part]
        held = dense[: part.stop - first]
        of = _Rows(lengths[part], requests, rows.phase)
        _score(some, pool, weights[part], table[part] if own else table, of, held)
        torch.gather(held, 1, columns[part].clamp(max=width - 1), out=out[part])
    return out


__all__ = [
    "SCHED_SLOT_CAP",
    "build_candidate_gather",
    "build_schedule",
    "cache_format",
    "paged_mxfp4_mqa_logits",
    "select_config",
]
