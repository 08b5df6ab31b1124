"""The index operations without pages: keys and queries as the numbers that their format makes of them.

The keys of a pool are a table, one row a slot: no packing, no order of scales, no address within a page. Scores,
selection and candidate blocks are computed as they are defined. Norm, RoPE, rotation and sums over heads are the
reference's, step by step: one unit in the last place more can flip a code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dsv4_kernels import formats, layout, reference
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.pooling import Compressor, TokenRuns
from dsv4_kernels.reference import quantize
from dsv4_kernels.reference.transform import tree_sum

EXACT = layout.layout("float32")
ROWS_AT_ONCE = 32


class PlainIndex:
    """See `dsv4_kernels.ops` for each operation."""

    def __init__(self) -> None:
        self._exact: dict[int, IndexPool] = {}
        self._stored: dict[int, Tensor] = {}

    def quantize_query(self, q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, spec: IndexSpec) -> Query:
        turned = quantize.quantize_query(q, cos, sin, positions, replace(spec, layout=EXACT)).values
        assert turned is not None
        return Query(spec, q.shape[1], values=_as_stored(turned.flatten(0, 1), spec).view(turned.shape))

    def quantize_query_with_weights(
        self,
        q: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        weights: Tensor,
        weight_scale: float,
        spec: IndexSpec,
    ) -> tuple[Query, Tensor]:
        scaled = quantize.scale_head_weights(weights, weight_scale)
        return self.quantize_query(q, cos, sin, positions, spec), scaled

    def write_index_keys(
        self,
        pool: IndexPool,
        k: Tensor,
        norm_weight: Tensor,
        norm_eps: float,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        slots: Tensor,
    ) -> None:
        quantize.write_index_keys(self._exact_pool(pool), k, norm_weight, norm_eps, cos, sin, positions, slots)
        self._keep(pool, slots[slots >= 0])

    def compress_index_keys(
        self,
        pool: IndexPool,
        compressor: Compressor,
        projected: Tensor,
        cos: Tensor,
        sin: Tensor,
        runs: TokenRuns,
        slots: Tensor,
    ) -> None:
        reference.compress_index_keys(self._exact_pool(pool), compressor, projected, cos, sin, runs, slots)
        self._keep(pool, slots[runs.closing(compressor.pooling.ratio) & (slots >= 0)])

    def readback(self, pool: IndexPool, slots: Tensor) -> Tensor:
        return self._table(pool)[slots]

    def paged_logits(self, call: LogitsCall) -> Tensor:
        q, weights, table = call.query.values, call.weights.float(), self._table(call.pool)
        assert q is not None
        out, per_entry = call.output().fill_(-torch.inf), call.entry_slots
        for rows, sequence in _blocks(call):
            place = torch.arange(int(call.lengths[rows].max()))
            slots = call.page_table[sequence].long()[place // per_entry] * per_entry + place % per_entry
            scores = q[rows].flatten(0, 1) @ table[slots].t()
            scores = scores.view(-1, call.heads, len(place)).relu() * weights[rows].unsqueeze(-1)
            out[rows, : len(place)] = tree_sum(scores.transpose(0, 1)) * call.weight_scale
        column = torch.arange(call.max_seq_len)
        out.masked_fill_(column >= call.lengths.unsqueeze(1), -torch.inf)
        return out if call.starts is None else out.masked_fill_(column < call.starts.unsqueeze(1), -torch.inf)

    def rowgroup_logits(self, call: LogitsCall) -> Tensor:
        return self.paged_logits(call)

    def topk(self, logits: Tensor, lengths: Tensor, k: int, by_position: bool) -> Tensor:
        out = torch.full((logits.shape[0], k), -1, dtype=torch.int32)
        for row, seen in enumerate(lengths.tolist()):
            order = logits[row, :seen].sort(descending=True, stable=True).indices[:k]
            out[row, : len(order)] = (order.sort().values if by_position else order).int()
        return out

    def topk_slots(
        self,
        logits: Tensor,
        lengths: Tensor,
        k: int,
        page_table: Tensor,
        row_to_seq: Tensor | None,
        page_slots: int,
        by_position: bool,
    ) -> tuple[Tensor, Tensor]:
        picked = self.topk(logits, lengths, k, by_position)
        sequence = torch.arange(len(picked)) if row_to_seq is None else row_to_seq.long()
        place = picked.clamp(min=0).long()
        slots = page_table[sequence[:, None], place // page_slots].long() * page_slots + place % page_slots
        return picked, slots.masked_fill(picked < 0, -1)

    def candidate_blocks(self, logits: Tensor, lengths: Tensor, count: int, block: int) -> Tensor:
        out = torch.full((logits.shape[0], count), -1, dtype=torch.int32)
        for row, seen in enumerate(lengths.tolist()):
            if not seen:
                continue
            best = torch.stack([logits[row, first : min(first + block, seen)].max() for first in range(0, seen, block)])
            best[-1] = torch.inf
            chosen = best.sort(descending=True, stable=True).indices[:count].sort().values
            out[row, : len(chosen)] = chosen.int()
        return out

    def exact(self, pool: IndexPool) -> Tensor:
        """float32 [slots, 128]: what was to be stored, NaN where nothing was."""
        return self._exact_pool(pool).payload.view(-1, layout.HEAD_DIM)

    def _exact_pool(self, pool: IndexPool) -> IndexPool:
        found = self._exact.get(pool.payload.data_ptr())
        if found is None:
            found = IndexPool.allocate(replace(pool.spec, layout=EXACT), -(-pool.tokens // EXACT.page_slots))
            found.payload.fill_(torch.nan)
            self._exact[pool.payload.data_ptr()] = found
        return found

    def _table(self, pool: IndexPool) -> Tensor:
        """float32 [slots, 128]: what is stored, as its format gives it back."""
        table = self._stored.get(pool.payload.data_ptr())
        if table is None:
            table = self._stored[pool.payload.data_ptr()] = torch.full_like(self.exact(pool), torch.nan)
        return table

    def _keep(self, pool: IndexPool, slots: Tensor) -> None:
        self._table(pool)[slots] = _as_stored(self.exact(pool)[slots], pool.spec)


def _as_stored(x: Tensor, spec: IndexSpec) -> Tensor:
    """float32 rows [n, 128] as the format gives them back."""
    if spec.layout.format == "fp4":
        columns = x.t().contiguous()
        return formats.dequantize_columns(*formats.quantize_columns(columns, spec.convention)).t().contiguous()
    if spec.layout.format == "fp8":
        values, scale = formats.quantize_e4m3(x)
        return values.float() * scale.unsqueeze(-1)
    return x.bfloat16().float() if spec.layout.format == "bf16" else x


def _blocks(call: LogitsCall) -> Iterator[tuple[slice, int]]:
    """Consecutive rows of one sequence that see anything, a few at once, and their row of the page table."""
    sequences = list(range(call.rows)) if call.row_to_seq is None else call.row_to_seq.tolist()
    start = 0
    for stop in range(1, call.rows + 1):
        if stop < call.rows and sequences[stop] == sequences[start] and stop - start < ROWS_AT_ONCE:
            continue
        if int(call.lengths[start:stop].max()):
            yield slice(start, stop), sequences[start]
        start = stop
