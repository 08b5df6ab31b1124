"""Random inputs of one launch of paged logits: one sequence, bytes of every code, scales over eight octaves."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.layout import SPLIT8, SPLIT64, Layout
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

GAP = 4096
"""Bytes between the pages of a pool that is shared with other layers."""


def random_call(
    keys: int,
    heads: int,
    rows: int,
    *,
    shared: bool,
    windowed: bool = False,
    dense: bool = True,
    page8: bool = False,
    float_weights: bool = False,
) -> LogitsCall:
    """`rows` rows that see all of `keys` keys (a multiple of 64) of one sequence, on the CPU.

    Rows that are not `shared` name the pages in a table row each.
    """
    torch.manual_seed(keys + heads)
    spec = IndexSpec(SPLIT8 if page8 else SPLIT64, hadamard=False)
    pages = keys // spec.layout.page_slots
    table = torch.randperm(pages).int()[None]
    return LogitsCall(
        query=_query(spec, rows, heads),
        pool=_pool(spec.layout, spec, pages, 0 if dense else GAP),
        weights=torch.randn(rows, heads).to(torch.float32 if float_weights else torch.bfloat16),
        page_table=table if shared else table.repeat(rows, 1),
        lengths=torch.full((rows,), keys, dtype=torch.int32),
        weight_scale=0.5,
        max_seq_len=keys,
        row_to_seq=torch.zeros(rows, dtype=torch.int32) if shared else None,
        starts=torch.zeros(rows, dtype=torch.int32) if windowed else None,
    )


def _query(spec: IndexSpec, rows: int, heads: int) -> Query:
    payload = torch.randint(0, 256, (rows, heads, 64), dtype=torch.uint8)
    return Query(spec, heads, payload=payload, scale=_scales(rows, 1, 4, 16, max(4, heads // 16)))


def _pool(layout: Layout, spec: IndexSpec, pages: int, gap: int) -> IndexPool:
    tensors = {}
    for part in layout.tensors:
        whole = torch.zeros(pages, part.bytes_per_page + gap, dtype=torch.uint8)
        page = whole[:, : part.bytes_per_page]
        is_scale = part.name == layout.scale_spec.name
        page.copy_(_scales(*page.shape) if is_scale else torch.randint(0, 256, page.shape, dtype=torch.uint8))
        tensors[part.name] = page.view(pages, *part.shape)
    return IndexPool(spec, tensors)


def _scales(*shape: int) -> Tensor:
    return torch.randint(123, 132, shape, dtype=torch.uint8)
