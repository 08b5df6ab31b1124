"""Known answers of row groups: rows of one sequence stand together, on pages of 64 and of 8 slots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from dsv4_kernels.formats import CONVENTIONS
from dsv4_kernels.layout import GROUPS, HEAD_DIM, LAYOUTS, Layout
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.registry import LogitsShape

if TYPE_CHECKING:
    from dsv4_kernels.implementation import Implementation

SHAPES = tuple(LogitsShape(heads, layout) for layout in ("split64", "split8") for heads in (64, 32))
"""DeepSeek-V4's and V4.1's indexer."""
GROUPINGS = ((3, 1, 2), (1, 1, 1, 1))
"""Rows of each sequence: a verify step, and a decode step, whose rows share nothing and may be another kernel."""


def mismatch(backend: Implementation, device: torch.device, shapes: Sequence[LogitsShape] = SHAPES) -> str:
    for shape in shapes:
        of = LAYOUTS[shape.layout]
        for rows in GROUPINGS:
            different = _differs(backend, device, of, shape, rows)
            if different:
                return f"logits of {different} in {of.name} with {shape.heads} heads differ from the known ones"
    return ""


def _differs(
    backend: Implementation, device: torch.device, of: Layout, shape: LogitsShape, grouping: tuple[int, ...]
) -> str:
    """Keys are +1 or -1 times a power of two by slot, so that a logit is the sum of positive head weights times 128."""
    heads, dtype = shape.heads, torch.float32 if shape.float_weights else torch.bfloat16
    spec = IndexSpec(of, CONVENTIONS["aiter"], hadamard=False)
    pages = 2 * 64 // of.page_slots
    pool = IndexPool.allocate(spec, pages, device)
    slots = torch.arange(pool.tokens, device=device)
    codes = torch.where(slots % 3 == 0, 0xAA, 0x22).to(torch.uint8)
    pool.payload.view(-1)[of.payload_offsets(slots)] = codes[:, None].expand(-1, 64)
    pool.scale.view(-1)[of.scale_offsets(slots)] = (126 + slots % 4).to(torch.uint8)[:, None].expand(-1, GROUPS)
    table = torch.arange(pages, dtype=torch.int32, device=device).flip(0).repeat(len(grouping), 1)
    table = torch.stack([row.roll(s) for s, row in enumerate(table)])
    starts = torch.tensor([0, *accumulate(grouping)], dtype=torch.int32, device=device)
    rows = sum(grouping)
    bounds = [0, pool.tokens - 1, pool.tokens, 65, 7, 66]
    lengths = torch.tensor(bounds[:rows], dtype=torch.int32, device=device)
    seqs = torch.tensor([s for s, n in enumerate(grouping) for _ in range(n)], dtype=torch.int32, device=device)
    alone = max(grouping) == 1
    head = torch.arange(heads, device=device)
    payload = torch.full((rows, heads, 64), 0x22, dtype=torch.uint8, device=device)
    scale = torch.zeros(rows, 1, GROUPS, 16, max(4, heads // 16), dtype=torch.uint8, device=device)
    scale[:, 0, :, head % 16, head // 16] = (127 + head % 2).to(torch.uint8)
    weights = (head.float() % 8 - 2).expand(rows, heads).to(dtype).contiguous()
    call = LogitsCall(
        query=Query(spec, heads, payload=payload, scale=scale),
        pool=pool,
        weights=weights,
        page_table=table,
        lengths=lengths,
        weight_scale=0.25,
        max_seq_len=pool.tokens,
        row_to_seq=None if alone else seqs,
        query_start_loc=starts,
        max_query_len=max(grouping),
    )
    got = backend.rowgroup_logits(call)
    weighted = float(((head.float() % 8 - 2) * (1 + head % 2)).sum()) * HEAD_DIM * 0.25
    column = torch.arange(pool.tokens, device=device)
    for row in range(rows):
        slot = table[seqs[row]].long()[column // of.page_slots] * of.page_slots + column % of.page_slots
        known = torch.where(slot % 3 == 0, 0.0, weighted * torch.exp2((slot % 4 - 1).float()))
        seen = slice(0, int(lengths[row]))
        if not torch.equal(got[row, seen] + 0.0, known[seen]):
            return f"row {row} of a group" if not alone else f"row {row} alone"
    return ""
