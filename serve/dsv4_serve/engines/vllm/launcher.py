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
from dsv4_serve.engines.inside_work import count_rows
from dsv4_serve.engines.vllm import tensors
from dsv4_serve.engines.vllm.candidate_pool import Gather, build_candidate_gather, score_blocks
from dsv4_serve.engines.vllm.step import phase

if TYPE_CHECKING:
    from torch import Tensor

    from dsv4_kernels.counters import Phase

SCHED_SLOT_CAP = 4096
"""vLLM's schedule buffer has four words a slot; ours takes one word a row."""


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
    """The query rows of a launch: what each sees, and whose row of the page table it reads (None: its own).

    `table_slots` as in `ops.paged_logits`.
    """

    table: Tensor
    lengths: Tensor
    requests: Tensor | None
    phase: Phase
    table_slots: int | None = None


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
    if use_gather:
        rows = _candidates(candidates, row_ends)
    else:
        rows = _rows(q, context_lens, block_table, row_ends, query_start_loc, schedule)
    if clean_logits:
        out_logits.fill_(float("-inf"))
    count_rows("paged_logits", rows.phase, "candidates" if use_gather else "whole", query.rows)
    ops.paged_logits(
        query,
        pool,
        weights,
        rows.table,
        rows.lengths,
        weight_scale=1.0,
        max_seq_len=out_logits.shape[1],
        row_to_seq=rows.requests,
        table_slots=rows.table_slots,
        phase=rows.phase,
        out=out_logits,
    )
    if calc_block_scores:
        if block_scores is None:
            raise ArgumentError("block_scores", None, "a tensor, with calc_block_scores")
        score_blocks(out_logits, rows.lengths, candidate_block_size, block_scores)
    return out_logits


def _candidates(candidates: Gather | None, row_ends: Tensor | None) -> _Rows:
    if candidates is None or row_ends is None:
        raise ArgumentError("candidates", None, "both values of build_candidate_gather, with use_gather")
    return _Rows(candidates["entries"], row_ends, None, phase(), candidates["block"])


def _rows(
    q: Tensor,
    context_lens: Tensor,
    table: Tensor,
    row_ends: Tensor | None,
    query_start_loc: Tensor | None,
    schedule: Tensor | None,
) -> _Rows:
    if query_start_loc is not None:
        seqs = aiter_tensors.sequences(query_start_loc, q.shape[0])
        return _Rows(table, context_lens[seqs.long()] if row_ends is None else row_ends, seqs, "prefill")
    requests, next_n = q.shape[:2]
    if next_n == 1:
        return _Rows(table, context_lens if row_ends is None else row_ends, None, "decode")
    if row_ends is None:
        row_ends, _ = aiter_tensors.draft_rows(context_lens, next_n)
    seqs = schedule if schedule is not None else _requests(requests, next_n, context_lens.new_empty(requests * next_n))
    return _Rows(table, row_ends, seqs, "verify")


def _requests(requests: int, next_n: int, out: Tensor) -> Tensor:
    """`out` int32 [requests * next_n] with 0 next_n times, 1 next_n times and so on."""
    torch.arange(requests * next_n, dtype=torch.int32, device=out.device, out=out)
    return out.floor_divide_(next_n)


__all__ = [
    "SCHED_SLOT_CAP",
    "build_candidate_gather",
    "build_schedule",
    "cache_format",
    "paged_mxfp4_mqa_logits",
    "select_config",
]
