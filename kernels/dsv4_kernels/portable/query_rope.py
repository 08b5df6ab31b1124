"""RoPE of queries inside the portable kernels that store rows of main KV."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.portable import kv_math

QUERY_ROWS = 2
HEADS = 16
"""Rows and heads that a program takes."""


@triton.jit
def query_rows(
    program,
    query_ptr,
    cos_ptr,
    sin_ptr,
    positions_ptr,
    rows,
    heads,
    limit,
    stride_query,
    stride_head,
    stride_angle,
    Q: tl.constexpr,
    H: tl.constexpr,
    PAIRED: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Turn the last 64 values of Q rows and H heads, in place; PAIRED: they are bfloat16, two of them an aligned word.

    Heads of a row stand together in a thread, so that it loads an angle once for them.
    """
    blocks = tl.cdiv(heads, H)
    row = (program // blocks).to(tl.int64) * Q + tl.arange(0, Q)
    head = (program % blocks) * H + tl.arange(0, H)
    live = row < rows
    position = tl.load(positions_ptr + row, mask=live, other=0)
    held = tl.minimum(tl.maximum(position, 0), limit - 1)
    pair = tl.arange(0, 32)
    angle_at = (held * stride_angle)[:, None, None] + pair[None, None, :]
    cos = tl.load(cos_ptr + angle_at, mask=live[:, None, None], other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle_at, mask=live[:, None, None], other=0.0).to(tl.float32)
    at = row[:, None, None] * stride_query + head[None, :, None] * stride_head + 448
    mask = live[:, None, None] & (head < heads)[None, :, None]
    if PAIRED:
        words = (query_ptr + at).to(tl.pointer_type(tl.int32)) + pair[None, None, :]
        even, odd = kv_math.of_pairs(tl.load(words, mask=mask, other=0))
        y, z = even * cos - odd * sin, even * sin + odd * cos
        tl.store(words, kv_math.bfloat16_pairs(y, z, NATIVE), mask=mask)
    else:
        d = at + 2 * pair[None, None, :]
        even = tl.load(query_ptr + d, mask=mask, other=0.0).to(tl.float32)
        odd = tl.load(query_ptr + d + 1, mask=mask, other=0.0).to(tl.float32)
        kv_math.store_rounded(query_ptr, d, even * cos - odd * sin, mask, NATIVE)
        kv_math.store_rounded(query_ptr, d + 1, even * sin + odd * cos, mask, NATIVE)
