"""Stand-ins for AITER: modules with its published names and signatures, computing with the reference backend.

Two signatures of the decode launch were published: without and with the row-group arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

FP4X2 = torch.float4_e2m1fn_x2


def spec(rotated: bool) -> IndexSpec:
    return IndexSpec.named("split64", "aiter", hadamard=rotated)


def pool(payload: Tensor, scale: Tensor, rotated: bool = True) -> IndexPool:
    return IndexPool(spec(rotated), {"payload": payload.view(torch.uint8), "scale": scale})


def rope_rotate_activation(
    out: Tensor,
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rope_dim: int,
    out_scale: Tensor | None = None,
    group_size: int | None = None,
    shuffle_scale: bool = False,
    do_rotate_act: bool = True,
) -> None:
    assert (out.dtype, rope_dim, group_size, shuffle_scale) == (FP4X2, 64, 32, True)
    query = reference.quantize_query(input, cos, sin, positions, spec(do_rotate_act))
    assert query.payload is not None
    assert query.scale is not None
    assert out_scale is not None
    out.view(torch.uint8).copy_(query.payload)
    out_scale.copy_(query.scale)


def rmsnorm_rope_rotate_activation_fp4quant_kvcache(
    kvcache: Tensor,
    scale: Tensor,
    input: Tensor,
    norm_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    epsilon: float,
    rope_dim: int,
    kv_block_size: int = 16,
    group_size: int = 32,
    shuffle_scale: bool = True,
    do_rotate_act: bool = False,
) -> None:
    assert (kvcache.dtype, rope_dim, kv_block_size, group_size, shuffle_scale) == (FP4X2, 64, 64, 32, True)
    stored = pool(kvcache, scale, do_rotate_act)
    reference.write_index_keys(stored, input[:, 0], norm_weight, epsilon, cos, sin, positions, slot_mapping)


def decode(
    q_fp4: Tensor,
    q_scale: Tensor,
    kv_cache: Tensor,
    kv_scale: Tensor,
    block_tables: Tensor,
    weights: Tensor,
    context_lens: Tensor,
    max_seq_len: int,
    *,
    weight_scale: float = 1.0,
    next_n: int = 1,
    block_k: int = 256,
    kv_block_size: int = 64,
    num_warps: int = 4,
    parallel_unit_num: int | None = None,
    out: Tensor | None = None,
    cta_info: Tensor | None = None,
    total_ctas: int | None = None,
    stream: object = None,
) -> Tensor:
    """Scores what the schedule says, and reads the page table ahead as AITER's loop does."""
    assert (next_n, block_k, kv_block_size, num_warps, weights.dtype) == (1, 256, 64, 4, torch.bfloat16)
    assert out is not None
    assert cta_info is not None
    assert total_ctas == len(cta_info)
    exact = _logits(
        q_fp4[:, 0],
        q_scale[:, 0],
        kv_cache,
        kv_scale,
        block_tables,
        weights,
        context_lens,
        None,
        None,
        weight_scale,
        max_seq_len,
    )
    for row, chunk, chunks, length in cta_info.tolist():
        seen = slice(chunk * block_k, min((chunk + chunks) * block_k, length))
        out[row, seen] = exact[row, seen]
        assert (chunk + chunks) * block_k // 64 <= block_tables.shape[1] or length == 0, "reads past the page table"
    return out


def decode_with_row_groups(
    *arguments: Any,
    row_ends: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int | None = None,
    pages_per_block: int = 1,
    plan: object = None,
    **named: Any,
) -> Tensor:
    """The decode entry of an AITER with row groups (#6145): one launch without a schedule for grouped rows."""
    if query_start_loc is None:
        assert (row_ends, max_query_len, pages_per_block, plan) == (None, None, 1, None)
        return decode(*arguments, **named)
    q, q_scale, keys, scale, table, weights, lengths, width = arguments
    rows, heads = q.shape[0], q.shape[2]
    page_size = named["kv_block_size"]
    assert lengths is None
    assert isinstance(plan, Plan)
    planned = Plan(len(query_start_loc) - 1, max_query_len or 0, rows, heads, page_size, width, pages_per_block)
    assert plan == planned, "the launch is not what was planned"
    assert row_ends is not None
    inside = torch.arange(pages_per_block, dtype=torch.int32)
    pages = (table.unsqueeze(-1) * pages_per_block + inside).flatten(1)
    layout = "split8" if page_size == 8 else "split64"
    held = IndexSpec.named(layout, "aiter")
    parts = zip(held.layout.tensors, (keys.view(torch.uint8), scale), strict=True)
    call = LogitsCall(
        query=Query(held, heads, payload=q[:, 0].view(torch.uint8), scale=q_scale[:, 0]),
        pool=IndexPool(held, {of.name: tensor.view(-1, *of.shape) for of, tensor in parts}),
        weights=weights,
        page_table=pages,
        lengths=row_ends,
        row_to_seq=torch.searchsorted(query_start_loc, torch.arange(rows), right=True).sub_(1).int(),
        weight_scale=named["weight_scale"],
        max_seq_len=width,
    )
    seen = torch.arange(width) < row_ends.unsqueeze(1)
    out: Tensor = named["out"]
    return out.copy_(torch.where(seen, reference.paged_logits(call), out))


@dataclass(frozen=True)
class Plan:
    """What `make_fp4_mqa_plan` remembers of the launch."""

    num_seqs: int
    max_qlen: int
    num_rows: int
    heads: int
    page_size: int
    max_seq_len: int
    pages_per_block: int = 1


def make_fp4_mqa_plan(
    num_seqs: int,
    max_qlen: int,
    num_rows: int,
    heads: int,
    page_size: int,
    max_seq_len: int,
    pages_per_block: int = 1,
) -> Plan:
    return Plan(num_seqs, max_qlen, num_rows, heads, page_size, max_seq_len, pages_per_block)


ROW_GROUPS: dict[str, object] = {
    "flydsl_pa_mqa_logits_fp4": decode_with_row_groups,
    "make_fp4_mqa_plan": make_fp4_mqa_plan,
}
"""`modules(**ROW_GROUPS)` is an AITER that has them."""


def prefill(
    q_fp4: Tensor,
    q_scale: Tensor,
    kv_cache: Tensor,
    kv_scale: Tensor,
    block_tables: Tensor,
    weights: Tensor,
    row_to_batch: Tensor,
    local_starts: Tensor,
    local_ends: Tensor,
    max_seq_len: int,
    *,
    weight_scale: float = 1.0,
    block_k: int = 256,
    kv_block_size: int = 64,
    num_warps: int = 4,
    parallel_unit_num: int = 512,
    out: Tensor | None = None,
    cta_info: Tensor | None = None,
    n_ctas: int | None = None,
    stream: object = None,
) -> Tensor:
    assert (block_k, kv_block_size, num_warps, weights.dtype) == (256, 64, 4, torch.bfloat16)
    assert out is not None
    assert cta_info is not None
    assert n_ctas == len(cta_info)
    exact = _logits(
        q_fp4,
        q_scale,
        kv_cache,
        kv_scale,
        block_tables,
        weights,
        local_ends,
        row_to_batch,
        local_starts,
        weight_scale,
        max_seq_len,
    )
    for row, _sequence, chunk, chunks, start, end in cta_info.tolist():
        seen = slice(max(chunk * block_k, start), min((chunk + chunks) * block_k, end))
        out[row, seen] = exact[row, seen]
    return out


def _logits(
    q: Tensor,
    q_scale: Tensor,
    keys: Tensor,
    scale: Tensor,
    table: Tensor,
    weights: Tensor,
    ends: Tensor,
    rows: Tensor | None,
    starts: Tensor | None,
    weight_scale: float,
    width: int,
) -> Tensor:
    query = Query(spec(True), q.shape[1], payload=q.view(torch.uint8), scale=q_scale)
    call = LogitsCall(
        query=query,
        pool=pool(keys, scale),
        weights=weights,
        page_table=table,
        lengths=ends,
        row_to_seq=rows,
        starts=starts,
        weight_scale=weight_scale,
        max_seq_len=width,
    )
    return reference.paged_logits(call)


def modules(**replaced: object) -> dict[str, ModuleType]:
    """AITER's modules by name. `replaced` puts something else in a name's place; None leaves the name out."""
    offered: dict[str, dict[str, object]] = {
        "aiter": {
            "dtypes": SimpleNamespace(fp4x2=FP4X2),
            "rope_rotate_activation": rope_rotate_activation,
            "rmsnorm_rope_rotate_activation_fp4quant_kvcache": rmsnorm_rope_rotate_activation_fp4quant_kvcache,
        },
        "aiter.ops": {},
        "aiter.ops.flydsl": {"flydsl_pa_mqa_logits_fp4": decode, "flydsl_pa_mqa_logits_fp4_prefill": prefill},
    }
    made = {}
    for module, names in offered.items():
        made[module] = ModuleType(module)
        for name, value in names.items():
            chosen = replaced.pop(name, value)
            if chosen is not None:
                setattr(made[module], name, chosen)
    for name, value in replaced.items():
        setattr(made["aiter.ops.flydsl"], name, value)
    return made
