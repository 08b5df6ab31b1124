"""Queries and keys into their stored form, and keys back from it."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import formats
from dsv4_kernels.layout import GROUPS, HEAD_DIM, page_offsets
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.reference.page_bytes import flat_bytes, write_bytes
from dsv4_kernels.reference.transform import hadamard, rms_norm, rope


def quantize_query(q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, spec: IndexSpec) -> Query:
    """See `ops.quantize_query`."""
    rows, heads, _ = q.shape
    columns = q.reshape(rows * heads, HEAD_DIM).t().float().contiguous().view(HEAD_DIM, rows, heads)
    x = _activations(rope(columns, *_angles(cos, sin, positions)).view(HEAD_DIM, -1), spec)
    if spec.hadamard:
        x = hadamard(x)
    if spec.layout.format != "fp4":
        return Query(spec, heads, values=_rounded(x.t().contiguous(), spec).view(rows, heads, HEAD_DIM))
    codes, scale = formats.quantize_columns(x, spec.convention)
    swizzled = torch.zeros(rows, 1, GROUPS, 16, max(4, -(-heads // 64) * 4), dtype=torch.uint8, device=q.device)
    swizzled[:, 0, :, :, : heads // 16] = scale.view(GROUPS, rows, heads // 16, 16).permute(1, 0, 3, 2)
    return Query(spec, heads, payload=formats.pack_columns(codes).view(rows, heads, HEAD_DIM // 2), scale=swizzled)


def scale_head_weights(weights: Tensor, scale: float) -> Tensor:
    """bfloat16 `weights` rounded to bfloat16 before and after scaling, as an engine's GEMM and scaling do."""
    return (weights.bfloat16().float() * scale).bfloat16()


def quantize_query_with_weights(
    q: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, weights: Tensor, weight_scale: float, spec: IndexSpec
) -> tuple[Query, Tensor]:
    """See `ops.quantize_query_with_weights`."""
    return quantize_query(q, cos, sin, positions, spec), scale_head_weights(weights, weight_scale)


def query_values(query: Query) -> Tensor:
    """float32 [T, H, 128]: what the stored query means."""
    if query.payload is None or query.scale is None:
        assert query.values is not None
        return query.values
    rows, heads, _ = query.payload.shape
    bytes_ = query.scale[:, 0, :, :, : heads // 16].permute(0, 3, 2, 1).reshape(rows, heads, GROUPS)
    values = formats.decode_e2m1_pairs(query.payload).view(rows, heads, GROUPS, formats.GROUP)
    return (values * formats.decode_e8m0(bytes_).unsqueeze(-1)).view(rows, heads, HEAD_DIM)


def write_index_keys(
    pool: IndexPool,
    k: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
) -> None:
    """See `ops.write_index_keys`."""
    kept = slots >= 0
    if not bool(kept.all()):
        k, positions, slots = k[kept], positions[kept], slots[kept]
    if not k.shape[0]:
        return
    x = _activations(rms_norm(k.t().float().contiguous(), norm_weight.float(), norm_eps), pool.spec)
    x = _activations(rope(x.unsqueeze(-1), *_angles(cos, sin, positions)).squeeze(-1), pool.spec)
    if pool.spec.hadamard:
        x = hadamard(x)
    store(pool, x, slots)


def store(pool: IndexPool, x: Tensor, slots: Tensor) -> None:
    """Quantise the columns of float32 [128, n] and scatter them to `slots` [n]."""
    of, rule = pool.spec.layout, pool.spec.convention
    if of.format == "fp4":
        codes, scale = formats.quantize_columns(x, rule)
        write_bytes(pool, slots, formats.pack_columns(codes), scale.t())
    elif of.format == "fp8":
        values, scales = formats.quantize_e4m3(x.t().contiguous())
        write_bytes(pool, slots, values.view(torch.uint8), scales.unsqueeze(-1).view(torch.uint8))
    else:
        pool.payload[slots // of.page_slots, slots % of.page_slots] = x.t().to(pool.payload.dtype)


def page_keys(pool: IndexPool, pages: Tensor) -> Tensor:
    """float32 [n * page_slots, 128]: the dequantised keys of int64 `pages` [n], in token order."""
    of, n = pool.spec.layout, pages.shape[0]
    if of.format == "fp4":
        unit_at, scale_at = page_offsets(of, pool.device)
        units = flat_bytes(pool.payload).view(torch.complex128)
        at = (pages * (pool.payload_stride // 16))[:, None] + unit_at
        payload = units.index_select(0, at.view(-1)).view(torch.uint8)
        at = (pages * pool.scale_stride)[:, None] + scale_at
        scale = formats.decode_e8m0(flat_bytes(pool.scale).index_select(0, at.view(-1)))
        values = formats.decode_e2m1_pairs(payload).view(-1, formats.GROUP)
        return values.mul_(scale.unsqueeze(-1)).view(-1, HEAD_DIM)
    page = pool.payload.index_select(0, pages)
    if of.format == "fp8":
        split = of.page_slots * of.payload_bytes
        values = page[:, :split].view(torch.float8_e4m3fn).float().view(n, of.page_slots, HEAD_DIM)
        return (values * page[:, split:].contiguous().view(torch.float32).unsqueeze(-1)).view(-1, HEAD_DIM)
    return page.view(-1, HEAD_DIM).float()


def readback(pool: IndexPool, slots: Tensor) -> Tensor:
    """See `ops.readback`."""
    of = pool.spec.layout
    pages, inverse = torch.unique(slots // of.page_slots, return_inverse=True)
    return page_keys(pool, pages).index_select(0, inverse * of.page_slots + slots % of.page_slots)


def _activations(x: Tensor, spec: IndexSpec) -> Tensor:
    """float32 rounded to bfloat16 where the convention is that of a model whose activations are; one NaN only."""
    if not spec.convention.fake_quantize:
        return x
    return x.to(torch.bfloat16).float().masked_fill_(x.isnan(), torch.nan)


def _angles(cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of each row's position as float32 [32, n, 1]."""
    pick = [t.index_select(0, positions).float().t().contiguous().unsqueeze(-1) for t in (cos, sin)]
    return pick[0], pick[1]


def _rounded(x: Tensor, spec: IndexSpec) -> Tensor:
    """float32 rows [n, 128] rounded to the precision that the layout stores."""
    if spec.layout.format == "fp8":
        values, scale = formats.quantize_e4m3(x)
        return values.float() * scale.unsqueeze(-1)
    return x.to(torch.bfloat16).float() if spec.layout.format == "bf16" else x
