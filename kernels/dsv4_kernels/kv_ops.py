"""Operations on main KV rows: store, norm + RoPE + store with the query roped in the same launch, dequantise.

Bytes are defined for every input, and equal in every backend:

- e4m3 rows (`v4`, `v41`): a group's scale is the smallest power of two s >= 2^-13 with amax / s <= 448, its byte
  log2(s) + 127; codes are x / s to nearest even, so none saturates. Below half of 2^-9 scales a value becomes a zero
  of its sign. 114 is the least byte written, for zeros and denormals too.
- e2m1 rows (`v41_fp4`): a group's scale is amax / 6, divided in float32, clamped to 2^-9..448, to nearest even as e4m3;
  codes are x / scale, divided in float32, to nearest even. Beyond 6 scales they saturate; signs stay, of zeros too.
- A NaN or an infinity poisons its group: the scale is NaN (byte 255 of e8m0, 127 of e4m3), the codes are zeros, and
  the whole group reads as NaN.
- RoPE values in bf16 (`v4`): to nearest even; infinities stay, beyond the largest bf16 values become one; NaN is
  0x7FC0. The eighth scale byte is zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import backends, check
from dsv4_kernels.counters import Phase
from dsv4_kernels.kv_layout import ROPE_WIDTH, WIDTH
from dsv4_kernels.kv_pool import KVPool


def store_kv(pool: KVPool, rows: Tensor, slots: Tensor, *, phase: Phase | None = None) -> None:
    """Quantise `rows` float [n, 512] to `slots` int64 [n] of the pool.

    A slot of -1 skips its row. Slots of one call must differ. Padding and rows of other slots keep their bytes.
    """
    check.tensor("rows", rows, check.FLOATS, (None, WIDTH), pool.device)
    _slots(pool, slots, rows.shape[0])
    backends.run("store_kv", phase, pool.device).store_kv(pool, rows, slots)


def norm_rope_store_kv(
    pool: KVPool,
    kv: Tensor,
    norm_weight: Tensor,
    norm_eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    *,
    query: Tensor | None = None,
    phase: Phase | None = None,
) -> None:
    """RMSNorm, RoPE of the last 64 values, `store_kv`; and RoPE of `query` in place, in the same launch.

    `kv` float [n, 512], `norm_weight` float [512], `cos` and `sin` float [max_position, 32], `positions` and `slots`
    int64 [n]; `query` float [n, heads, 512], whose last 64 dimensions turn and are rounded to its dtype. Pairs are
    adjacent dimensions. The norm and the rotation compute in float32, and each rounds its result to bfloat16, as
    DeepSeek's published inference code does.

    A slot of -1 stores nothing; its position is looked at only for its query. A GPU does not report positions outside
    of the tables; their rows are turned by the nearest position that the tables have.
    """
    device = pool.device
    check.tensor("kv", kv, check.FLOATS, (None, WIDTH), device)
    n = kv.shape[0]
    check.tensor("norm_weight", norm_weight, check.FLOATS, (WIDTH,), device)
    check.finite("norm_eps", norm_eps, 0)
    check.tensor("cos", cos, check.FLOATS, (None, ROPE_WIDTH // 2), device)
    check.tensor("sin", sin, check.FLOATS, (cos.shape[0], ROPE_WIDTH // 2), device)
    check.tensor("positions", positions, (torch.int64,), (n,), device)
    _slots(pool, slots, n)
    if query is not None:
        check.tensor("query", query, check.FLOATS, (n, None, WIDTH), device)
    if device.type == "cpu":
        looked_at = positions if query is not None else positions[slots >= 0]
        check.within("positions", looked_at, 0, cos.shape[0] - 1)
    backend = backends.run("norm_rope_store_kv", phase, device)
    backend.norm_rope_store_kv(pool, kv, norm_weight, norm_eps, cos, sin, positions, slots, query)


def dequantize_kv(
    pool: KVPool, slots: Tensor, *, dtype: torch.dtype = torch.bfloat16, phase: Phase | None = None
) -> Tensor:
    """`dtype` (bfloat16 or float32) [n, 512]: the rows at int64 `slots` [n]; zeros for a slot of -1.

    A value is code times scale as float32, which is exact for all that `store_kv` writes, then rounded to `dtype`
    (exact as well). Pages of other writers: NaN codes and NaN scales read as NaN, an e8m0 byte of 0 is 2^-127.
    """
    check.one_of("dtype", dtype, (torch.bfloat16, torch.float32))
    _slots(pool, slots, None)
    return backends.run("dequantize_kv", phase, pool.device).dequantize_kv(pool, slots, dtype)


def _slots(pool: KVPool, slots: Tensor, rows: int | None) -> None:
    check.tensor("slots", slots, (torch.int64,), (rows,), pool.device)
    check.within("slots", slots, -1, pool.slots - 1)
