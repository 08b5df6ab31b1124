"""Paged logits: `weight_scale * sum_h w[t, h] * relu(<q[t, h], k[s]>)`.

Two ways through, bitwise equal: rows that own their sequence alone (decode) share one gather of all their
pages; rows that share a sequence (prefill, verify) share each key and its matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.reference.quantize import page_keys, query_values, readback
from dsv4_kernels.reference.transform import tree_sum

COLUMN_TILE = 64
BLOCK_SCORES = 1 << 20
"""Scores (rows x heads x columns) of one block: 4 MiB of float32, which stays in a core's caches."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Consecutive rows of one sequence, and the pages `first..last - 1` that hold all they see."""

    start: int
    stop: int
    seq: int
    first: int
    last: int

    @property
    def pages(self) -> int:
        return self.last - self.first


def paged_logits(call: LogitsCall) -> Tensor:
    """See `ops.paged_logits`; columns that a row does not see hold -inf."""
    q = query_values(call.query).to(call.accumulate)
    w = call.weights.to(call.accumulate)
    out = call.output()
    opened = [0] * call.rows if call.starts is None else call.starts.tolist()
    windows = list(zip(opened, call.lengths.tolist(), strict=True))
    seqs = None if call.row_to_seq is None else call.row_to_seq.tolist()
    groups = _group(windows, seqs, call.entry_slots)
    alone = [g for g in groups if g.stop - g.start == 1]
    if alone:
        _score_alone(alone, q, call, w, out)
    for g in groups:
        if g.stop - g.start > 1:
            _score_shared(g, q, call, w, windows, out)
    column = torch.arange(call.max_seq_len, device=q.device)
    out.masked_fill_(column >= call.lengths.unsqueeze(1), float("-inf"))
    return out if call.starts is None else out.masked_fill_(column < call.starts.unsqueeze(1), float("-inf"))


def _group(windows: list[tuple[int, int]], seqs: list[int] | None, page_slots: int) -> list[_Rows]:
    """Runs of rows of one sequence; runs that see nothing are dropped.

    A run starts at a multiple of the column tile, so that no column's place in a matrix product depends on the window.
    """
    groups: list[_Rows] = []
    start = 0
    for row in range(1, len(windows) + 1):
        if row < len(windows) and seqs is not None and seqs[row] == seqs[start]:
            continue
        seen = [w for w in windows[start:row] if w[0] < w[1]]
        if seen:
            tile = max(COLUMN_TILE, page_slots)
            first = min(w[0] for w in seen) // tile * (tile // page_slots)
            last = -(-max(w[1] for w in seen) // page_slots)
            groups.append(_Rows(start, row, start if seqs is None else seqs[start], first, last))
        start = row
    return groups


def _score_alone(groups: list[_Rows], q: Tensor, call: LogitsCall, w: Tensor, out: Tensor) -> None:
    page_slots = call.entry_slots
    budget = max(1, BLOCK_SCORES // (q.shape[1] * page_slots))
    while groups:
        take, pages = 1, groups[0].pages
        while take < len(groups) and pages + groups[take].pages <= budget:
            pages += groups[take].pages
            take += 1
        batch, groups = groups[:take], groups[take:]
        ids = torch.cat([call.page_table[g.seq, g.first : g.last] for g in batch]).long()
        widths = [_padded(g.pages * page_slots) for g in batch]
        keys = _checked_keys(call, ids).to(q.dtype)
        scores = torch.empty(q.shape[1], sum(widths), dtype=q.dtype, device=q.device)
        at = key_at = 0
        for g, width in zip(batch, widths, strict=True):
            rows = _tile(keys[key_at : key_at + g.pages * page_slots], width)
            part = scores[:, at : at + width]
            torch.mm(q[g.start], rows.t(), out=part)
            part.relu_().mul_(w[g.start].unsqueeze(1))
            at, key_at = at + width, key_at + g.pages * page_slots
        total = tree_sum(scores).mul_(call.weight_scale)
        at = 0
        for g, width in zip(batch, widths, strict=True):
            _put(out[g.start], total[at : at + width], g.first * page_slots)
            at += width


def _score_shared(
    g: _Rows, q: Tensor, call: LogitsCall, w: Tensor, windows: list[tuple[int, int]], out: Tensor
) -> None:
    page_slots, heads = call.entry_slots, call.heads
    width, origin = _padded(g.pages * page_slots), g.first * page_slots
    keys = _tile(_checked_keys(call, call.page_table[g.seq, g.first : g.last].long()).to(q.dtype), width)
    step = max(1, BLOCK_SCORES // (heads * width))
    for start in range(g.start, g.stop, step):
        stop = min(start + step, g.stop)
        # A row whose window is empty may end past the keys that the others see.
        seen = _padded(max([0, *(end - origin for begin, end in windows[start:stop] if begin < end)]))
        if not seen:
            continue
        scores = torch.mm(q[start:stop].reshape(-1, q.shape[2]), keys[:seen].t()).view(-1, heads, seen)
        scores.relu_().mul_(w[start:stop].unsqueeze(2))
        _put(out[start:stop], tree_sum(scores.transpose(0, 1)).mul_(call.weight_scale), origin)


def _padded(columns: int) -> int:
    return -(-columns // COLUMN_TILE) * COLUMN_TILE


def _tile(keys: Tensor, width: int) -> Tensor:
    """`keys` with rows of zeros up to `width`: pages smaller than the tile end anywhere."""
    return keys if keys.shape[0] == width else torch.cat([keys, keys.new_zeros(width - keys.shape[0], keys.shape[1])])


def _put(out: Tensor, values: Tensor, origin: int) -> None:
    columns = min(out.shape[-1] - origin, values.shape[-1])
    out[..., origin : origin + columns] = values[..., :columns]


def _checked_keys(call: LogitsCall, entries: Tensor) -> Tensor:
    """float32 [n * entry_slots, 128] of the pages, or blocks inside pages, that int64 `entries` [n] name."""
    low, high = torch.aminmax(entries)
    count = call.pool.tokens // call.entry_slots
    if int(low) < 0 or int(high) >= count:
        what = "blocks" if call.gathers else "pages"
        raise ArgumentError("page_table", f"{int(low)}..{int(high)}", f"{what} 0..{count - 1}")
    if not call.gathers:
        return page_keys(call.pool, entries)
    slots = entries[:, None] * call.entry_slots + torch.arange(call.entry_slots, device=entries.device)
    return readback(call.pool, slots.flatten())
