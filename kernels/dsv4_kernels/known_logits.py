"""Known answers of the paged logits: keys of ones, so that every logit follows from its slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsv4_kernels.layout import GROUPS, HEAD_DIM, LAYOUTS, Layout
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.registry import LogitsShape, logits_forms

if TYPE_CHECKING:
    from dsv4_kernels.implementation import Implementation

KEYS = 128
"""Keys of the pool: two pages of 64 slots, or as many smaller ones."""

BLOCK = 8
"""Keys of a table's entry where it names less than a page."""

LONG_KEYS = 512 * 64
"""Keys of a row on a GPU too, where a backend may launch another kernel for long rows."""


def mismatch(backend: Implementation, device: torch.device, shapes: Sequence[LogitsShape]) -> str:
    """Empty if `backend` gives the known logits in all `shapes` and forms, else what differs."""
    for shape in shapes:
        for keys in (KEYS, LONG_KEYS) if device.type == "cuda" else (KEYS,):
            difference = _Case(shape, keys, device).mismatch(backend)
            if difference:
                return difference
    return ""


def ones_pool(layout: Layout, device: torch.device, keys: int = KEYS) -> IndexPool:
    """`keys` keys: slot s is all +1 (s even) or all -1 (s odd), times 2 ** (s % 3)."""
    pool = IndexPool.allocate(IndexSpec(layout, hadamard=False), keys // layout.page_slots, device)
    slots = torch.arange(pool.tokens, device=device)
    sign = torch.where(slots % 2 == 0, 0x22, 0xAA).to(torch.uint8)
    pool.payload.view(-1)[layout.payload_offsets(slots)] = sign[:, None].expand(-1, 64)
    scale = (127 + slots % 3).to(torch.uint8)
    pool.scale.view(-1)[layout.scale_offsets(slots)] = scale[:, None].expand(-1, GROUPS)
    return pool


class _Case:
    """Three rows whose tables name the halves of the pool in turn, by page or by blocks of 8 keys in falling order."""

    def __init__(self, shape: LogitsShape, keys: int, device: torch.device) -> None:
        of = LAYOUTS[shape.layout]
        self.shape, self.device = shape, device
        self.pool = ones_pool(of, device, max(KEYS, 2 * of.page_slots))
        self.keys = max(keys, self.pool.tokens)
        self.entry = BLOCK if shape.blocks else of.page_slots
        self.head = torch.arange(shape.heads, device=device)
        entries = self.pool.tokens // self.entry
        first = torch.arange(entries // 2, dtype=torch.int32, device=device)
        if shape.blocks:
            first = first.flip(0)
        second = first + entries // 2
        halves = [torch.cat(pair) for pair in ((second, first), (first, second), (second, second))]
        self.table = torch.stack(halves).repeat(1, self.keys // self.pool.tokens)

    def query(self) -> Query:
        heads, device, head = self.shape.heads, self.device, self.head
        scale = torch.zeros(3, 1, GROUPS, 16, max(4, heads // 16), dtype=torch.uint8, device=device)
        scale[:, 0, :, head % 16, head // 16] = (127 + head % 2).to(torch.uint8)
        payload = torch.full((3, heads, 64), 0x22, dtype=torch.uint8, device=device)
        return Query(self.pool.spec, heads, payload=payload, scale=scale)

    def ints(self, *values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def mismatch(self, backend: Implementation) -> str:
        seqs, starts = self.ints(1, 0, 0), self.ints(3, self.keys - 64, 0)
        forms = [("", None, None), (" of a shared sequence", seqs, None), (" of a window", seqs, starts)]
        forms = forms[: len(logits_forms(self.shape))]
        if len(forms) == 3:
            forms.append((" of a window of its own", None, starts))
        for form, rows, opened in forms:
            row = self._wrong_row(backend, rows, opened)
            if row is not None:
                told = "" if self.shape == LogitsShape() else f" with {self.shape}"
                return f"logits of row {row}{form} differ from the known ones{told}"
        return ""

    def _wrong_row(self, backend: Implementation, rows: Tensor | None, opened: Tensor | None) -> int | None:
        weights = (self.head.float() - 7).expand(3, self.shape.heads)
        lengths = self.ints(self.keys, self.keys - 63, 0)
        got = backend.paged_logits(
            LogitsCall(
                query=self.query(),
                pool=self.pool,
                weights=weights.to(torch.float32 if self.shape.float_weights else torch.bfloat16).contiguous(),
                page_table=self.table,
                lengths=lengths,
                row_to_seq=rows,
                starts=opened,
                weight_scale=0.5,
                max_seq_len=self.keys,
                table_slots=self.entry if self.shape.blocks else None,
            )
        )
        weighted = float(((self.head.float() - 7) * (1 + self.head % 2)).sum()) * HEAD_DIM * 0.5
        column, slots = torch.arange(self.keys, device=self.device), self.entry
        for row in range(3):
            table = self.table[row if rows is None else rows[row]].long()
            slot = table[column // slots] * slots + column % slots
            known = torch.where(slot % 2 == 0, weighted * torch.exp2((slot % 3).float()), 0.0)
            seen = slice(0 if opened is None else int(opened[row]), int(lengths[row]))
            if not torch.equal(got[row, seen] + 0.0, known[seen]):
                return row
        return None
