"""AITER's tensors as ours: pools, queries, page tables and the sequences of rows. Nothing is copied but tables."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.formats import CONVENTIONS
from dsv4_kernels.layout import GROUPS, HEAD_DIM, SPLIT8, SPLIT64, SPLIT128, Layout
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

LAYOUTS: dict[int, Layout] = {8: SPLIT8, 64: SPLIT64, 128: SPLIT128}
"""The layout of AITER's split pools by `kv_block_size`."""


def spec(of: Layout, hadamard: bool = True) -> IndexSpec:
    """AITER's convention in a layout. A reader of pages and queries needs neither to know whether they were rotated."""
    return IndexSpec(of, CONVENTIONS["aiter"], hadamard)


def index_pool(kvcache: Tensor, scale: Tensor, kv_block_size: int, *, hadamard: bool = True) -> IndexPool:
    """AITER's two tensors, `kvcache` [pages, ...] of bytes and `scale` uint8 [pages, ...], whose pages may be flat."""
    if kv_block_size not in LAYOUTS:
        raise ArgumentError("kv_block_size", kv_block_size, " or ".join(map(str, LAYOUTS)))
    of = LAYOUTS[kv_block_size]
    tensors = {}
    for part, tensor in ((of.payload_spec, kvcache.view(torch.uint8)), (of.scale_spec, scale)):
        fits = tensor.shape[1:].numel() == torch.Size(part.shape).numel()
        tensors[part.name] = tensor.view(-1, *part.shape) if fits else tensor
    return IndexPool(spec(of, hadamard), tensors)


def query(q_fp4: Tensor, q_scale: Tensor, stored: IndexSpec) -> Query:
    """`q_fp4` [..., H, 64] and `q_scale` [..., 4, 16, H / 16 rounded up] as queries of a pool that is `stored` so."""
    heads, rows = q_fp4.shape[-2], q_fp4.shape[:-2].numel()
    payload = q_fp4.view(torch.uint8).reshape(rows, heads, HEAD_DIM // 2)
    scale = q_scale.reshape(rows, 1, GROUPS, 16, q_scale.shape[-1])
    return Query(stored, heads, payload=payload, scale=scale)


def pages(block_tables: Tensor, pages_per_block: int) -> Tensor:
    """int32 page numbers of a table whose entries name `pages_per_block` neighbouring pages each."""
    if pages_per_block == 1:
        return block_tables
    inside = torch.arange(pages_per_block, dtype=torch.int32, device=block_tables.device)
    return (block_tables.unsqueeze(-1) * pages_per_block + inside).flatten(1)


def sequences(query_start_loc: Tensor, rows: int) -> Tensor:
    """int32 [rows]: the sequence of each row."""
    row = torch.arange(rows, dtype=torch.int32, device=query_start_loc.device)
    return (torch.searchsorted(query_start_loc, row, right=True, out_int32=True) - 1).clamp_(min=0)


def draft_rows(context_lens: Tensor, next_n: int) -> tuple[Tensor, Tensor | None]:
    """(lengths, sequences) int32 [B * next_n]: a sequence's last row sees all its keys, each row before one less."""
    if next_n == 1:
        return context_lens, None
    back = torch.arange(1 - next_n, 1, dtype=torch.int32, device=context_lens.device)
    seqs = torch.arange(len(context_lens), dtype=torch.int32, device=context_lens.device)
    return (context_lens.unsqueeze(1) + back).clamp_(min=0).flatten(), seqs.repeat_interleave(next_n)
