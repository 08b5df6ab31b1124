"""Main KV rows in plain torch: codes and scales of each layout, and pages of them."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import formats
from dsv4_kernels.kv_layout import ROPE_WIDTH, WIDTH, KVLayout
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.reference.page_bytes import flat_bytes

MIN_SCALE_BYTE = 114
MIN_E4M3 = 2.0**-9
E8M0_NAN = 255
E4M3_NAN = 127
BF16_NAN = 0x7FC0


def encode(of: KVLayout, rows: Tensor) -> tuple[Tensor, Tensor]:
    """uint8 data [n, data_bytes] and scales [n, scale_bytes] of float32 `rows` [n, 512]."""
    n = rows.shape[0]
    groups = rows[:, : of.coded].reshape(n, of.coded // of.group, of.group)
    amax = groups.abs().amax(-1)
    if of.code == "e2m1":
        scales, codes = _encode_e2m1(groups, amax)
        data = (codes[:, 0::2] | (codes[:, 1::2] << 4)).view(n, of.data_bytes)
    else:
        scales, data = _encode_e4m3(groups, amax)
    if of.plain_rope:
        data = torch.cat([data, to_bfloat16(rows[:, of.coded :]).view(torch.uint8)], 1)
        scales = torch.nn.functional.pad(scales, (0, of.scale_bytes - scales.shape[1]))
    return data, scales


def decode(of: KVLayout, data: Tensor, scales: Tensor) -> Tensor:
    """float32 [n, 512] of what `encode` gives, or another writer."""
    n = data.shape[0]
    if of.code == "e2m1":
        values = formats.decode_e2m1_pairs(data)
        scale = scales.view(torch.float8_e4m3fn).float()
    else:
        values = data[:, : of.coded].view(torch.float8_e4m3fn).float()
        scale = formats.decode_e8m0(scales[:, : of.coded // of.group].contiguous())
    values = (values.reshape(n, of.coded // of.group, of.group) * scale.unsqueeze(-1)).view(n, of.coded)
    if of.plain_rope:
        values = torch.cat([values, data[:, of.coded :].contiguous().view(torch.bfloat16).float()], 1)
    return values


def _encode_e4m3(groups: Tensor, amax: Tensor) -> tuple[Tensor, Tensor]:
    # Of a maximum that is NaN torch promises no sign.
    bits = amax.abs().view(torch.int32)
    # 448 = 1.75 * 2^8: the exponent of the ceiling moves up when the mantissa exceeds .75.
    byte = ((bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000)).clamp_(min=MIN_SCALE_BYTE)
    poisoned = bits >= 0x7F800000
    inverse = ((254 - byte) << 23).view(torch.float32)
    codes = (groups * inverse.unsqueeze(-1)).masked_fill(poisoned.unsqueeze(-1), 0).to(torch.float8_e4m3fn)
    return byte.masked_fill(poisoned, E8M0_NAN).to(torch.uint8), codes.view(torch.uint8).flatten(1)


def _encode_e2m1(groups: Tensor, amax: Tensor) -> tuple[Tensor, Tensor]:
    poisoned = ~torch.isfinite(amax)
    scale = (amax / formats.E2M1_MAX).clamp(MIN_E4M3, formats.E4M3_MAX).masked_fill(poisoned, 1)
    rounded = scale.to(torch.float8_e4m3fn)
    codes = formats.encode_e2m1(groups / rounded.float().unsqueeze(-1)).masked_fill(poisoned.unsqueeze(-1), 0)
    return rounded.view(torch.uint8).masked_fill(poisoned, E4M3_NAN), codes.flatten(1)


def to_bfloat16(x: Tensor) -> Tensor:
    """The nearest bfloat16 of float32 values; every NaN has the same bits."""
    return x.to(torch.bfloat16).view(torch.int16).masked_fill(x.isnan(), BF16_NAN).view(torch.bfloat16)


def store_kv(pool: KVPool, rows: Tensor, slots: Tensor) -> None:
    """See `kv_ops.store_kv`."""
    kept = slots >= 0
    rows, slots = rows[kept], slots[kept]
    data, scales = encode(pool.layout, rows.float())
    bytes_ = flat_bytes(pool.pages)
    bytes_[pool.layout.data_offsets(slots, pool.page_rows, pool.page_stride)] = data
    bytes_[pool.layout.scale_offsets(slots, pool.page_rows, pool.page_stride)] = scales


def norm_rope_store_kv(
    pool: KVPool,
    kv: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    query: Tensor | None,
) -> None:
    """See `kv_ops.norm_rope_store_kv`."""
    kept = slots >= 0
    x = rms_norm(kv[kept].float(), norm_weight.float(), norm_eps).bfloat16().float()
    store_kv(pool, rope_tail(x, *angles(cos, sin, positions[kept])), slots[kept])
    if query is not None:
        c, s = angles(cos, sin, positions)
        tail = query[..., -ROPE_WIDTH:]
        tail.copy_(_rope(tail.float(), c[:, None], s[:, None]))


def dequantize_kv(pool: KVPool, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """See `kv_ops.dequantize_kv`."""
    kept = slots >= 0
    bytes_, at = flat_bytes(pool.pages), slots[kept]
    data = bytes_[pool.layout.data_offsets(at, pool.page_rows, pool.page_stride)]
    scales = bytes_[pool.layout.scale_offsets(at, pool.page_rows, pool.page_stride)]
    out = torch.zeros(slots.shape[0], WIDTH, dtype=dtype, device=pool.device)
    out[kept] = decode(pool.layout, data, scales).to(dtype)
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Of rows [n, 512]. The sum of squares adds neighbours, then neighbouring sums: one order in every backend."""
    total = x * x
    while total.shape[1] > 1:
        total = total[:, 0::2] + total[:, 1::2]
    # In float64, because torch's float32 root is not always the nearest on a CPU.
    root = (total * (1.0 / WIDTH) + eps).double().sqrt().float()
    return (x * (1.0 / root)) * weight


def angles(cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 cos and sin [n, 32] of positions [n], the nearest that the tables have."""
    at = positions.clamp(0, cos.shape[0] - 1)
    return cos[at].float(), sin[at].float()


def rope_tail(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Float32 rows [n, 512] with their last 64 values turned, and rounded to bfloat16."""
    turned = _rope(x[:, -ROPE_WIDTH:], cos, sin).bfloat16().float()
    return torch.cat([x[:, :-ROPE_WIDTH], turned], 1)


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
