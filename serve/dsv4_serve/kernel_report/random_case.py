"""Random inputs of one launch of paged logits: one sequence, bytes of every code, scales over eight octaves."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.layout import LAYOUTS
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query


def random_call(
    keys: int,
    heads: int,
    rows: int,
    *,
    shared: bool,
    windowed: bool = False,
    layout: str = "split64",
    float_weights: bool = False,
    blocks: bool = False,
) -> LogitsCall:
    """`rows` rows that see all of `keys` keys (a multiple of 64) of one sequence, on the CPU.

    Rows that are not `shared` name the pages, or their `blocks` of 8 keys in any order, in a table row each.
    """
    torch.manual_seed(keys + heads)
    spec = IndexSpec(LAYOUTS[layout], hadamard=False)
    pages = keys // spec.layout.page_slots
    table = torch.randperm(keys // 8 if blocks else pages).int()[None]
    return LogitsCall(
        query=_query(spec, rows, heads),
        pool=_pool(spec, pages),
        weights=torch.randn(rows, heads).to(torch.float32 if float_weights else torch.bfloat16),
        page_table=table if shared else table.repeat(rows, 1),
        lengths=torch.full((rows,), keys, dtype=torch.int32),
        weight_scale=0.5,
        max_seq_len=keys,
        row_to_seq=torch.zeros(rows, dtype=torch.int32) if shared else None,
        starts=torch.zeros(rows, dtype=torch.int32) if windowed else None,
        table_slots=8 if blocks else None,
    )


def _query(spec: IndexSpec, rows: int, heads: int) -> Query:
    payload = torch.randint(0, 256, (rows, heads, 64), dtype=torch.uint8)
    return Query(spec, heads, payload=payload, scale=_scales(rows, 1, 4, 16, max(4, heads // 16)))


def _pool(spec: IndexSpec, pages: int) -> IndexPool:
    pool = IndexPool.allocate(spec, pages)
    pool.payload.copy_(torch.randint(0, 256, pool.payload.shape, dtype=torch.uint8))
    slots = torch.arange(pool.tokens)
    pool.scale.view(-1)[spec.layout.scale_offsets(slots)] = _scales(pool.tokens, 4)
    return pool


def _scales(*shape: int) -> Tensor:
    return torch.randint(123, 132, shape, dtype=torch.uint8)
