"""What a compressor's entries become, in one launch: latents, and main KV rows in pages. The portable kernels."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.portable import kv_math
from dsv4_kernels.portable.kv_store import put
from dsv4_kernels.portable.pool_window import keep_token, pool_window


@triton.jit
def _finish(
    x,
    row,
    closes,
    position,
    weight_ptr,
    latent_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    pages_ptr,
    slots,
    limit,
    stride_angle,
    page_stride,
    eps,
    R: tl.constexpr,
    OF: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Entries [R, 512] of the rows that close one: norm, latent, and with STORE RoPE of `position` and the store."""
    d = tl.arange(0, 512)
    x = kv_math.rms_norm_512(kv_math.round_bfloat16(x, NATIVE), tl.load(weight_ptr + d).to(tl.float32), eps, R)
    bits = kv_math.bfloat16_bits(x, NATIVE).to(tl.int16)
    tl.store(latent_ptr + (row * 512)[:, None] + d[None, :], bits, mask=closes[:, None])
    if STORE:
        slot = tl.load(slots_ptr + row, mask=closes, other=-1)
        live = closes & (slot >= 0) & (slot < slots)
        x = kv_math.round_bfloat16(x, NATIVE)
        x = kv_math.turn_rows(x, cos_ptr, sin_ptr, position, limit, stride_angle, live, R, NATIVE)
        put(x, slot, live, pages_ptr, page_stride, R, OF, PAGE, ALIGNED, NATIVE)


@triton.jit(do_not_specialize=["rows", "slots", "limit"])
def single_kernel(
    projected_ptr,
    requests_ptr,
    positions_ptr,
    weight_ptr,
    latent_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    pages_ptr,
    rows,
    slots,
    limit,
    stride_projected,
    stride_angle,
    page_stride,
    eps,
    R: tl.constexpr,
    OF: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Ratio 1: every row is an entry."""
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    inside = row < rows
    closes = tl.load(requests_ptr + row, mask=inside, other=-1) >= 0
    d = tl.arange(0, 512)
    empty = tl.zeros((R, 512), tl.int16)
    tl.store(latent_ptr + (row * 512)[:, None] + d[None, :], empty, mask=(inside & (closes == 0))[:, None])
    at = (row * stride_projected)[:, None] + d[None, :]
    x = tl.load(projected_ptr + at, mask=closes[:, None], other=0.0).to(tl.float32)
    position = tl.load(positions_ptr + row, mask=closes, other=0)
    _finish(
        x,
        row,
        closes,
        position,
        weight_ptr,
        latent_ptr,
        cos_ptr,
        sin_ptr,
        slots_ptr,
        pages_ptr,
        slots,
        limit,
        stride_angle,
        page_stride,
        eps,
        R,
        OF,
        PAGE,
        ALIGNED,
        NATIVE,
        STORE,
    )


@triton.jit(do_not_specialize=["requests", "tokens", "slots", "limit", "keep"])
def pooled_kernel(
    projected_ptr,
    ring_ptr,
    ape_ptr,
    requests_ptr,
    positions_ptr,
    first_ptr,
    weight_ptr,
    latent_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    pages_ptr,
    requests,
    tokens,
    slots,
    limit,
    stride_projected,
    stride_ring,
    stride_angle,
    page_stride,
    eps,
    keep,
    RATIO: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_APE: tl.constexpr,
    OF: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Other ratios: one row a program. With `keep` the row goes to the state as well."""
    row = tl.program_id(0).to(tl.int64)
    request, position = tl.load(requests_ptr + row), tl.load(positions_ptr + row).to(tl.int32)
    used = (request >= 0) & (request < requests)
    held = ring_ptr + request * stride_ring
    if keep != 0:
        keep_token(projected_ptr, held, row, position, used, stride_projected, tokens, WINDOW // RATIO * 1024)
    if used & ((position + 1) % RATIO == 0):
        first = tl.load(first_ptr + row)
        x = pool_window(
            projected_ptr,
            held,
            ape_ptr,
            row,
            first,
            position,
            stride_projected,
            tokens,
            512,
            RATIO,
            WINDOW,
            PARTS,
            HAS_APE,
        )
        one = tl.arange(0, 1)
        _finish(
            x,
            row + one,
            one == 0,
            position - (RATIO - 1) + one,
            weight_ptr,
            latent_ptr,
            cos_ptr,
            sin_ptr,
            slots_ptr,
            pages_ptr,
            slots,
            limit,
            stride_angle,
            page_stride,
            eps,
            1,
            OF,
            PAGE,
            ALIGNED,
            NATIVE,
            STORE,
        )
    else:
        tl.store(latent_ptr + row * 512 + tl.arange(0, 512), tl.zeros((512,), tl.int16))


@triton.jit(do_not_specialize=["requests", "tokens"])
def keep_kernel(
    projected_ptr,
    ring_ptr,
    requests_ptr,
    positions_ptr,
    stop_ptr,
    requests,
    tokens,
    stride_projected,
    stride_ring,
    COLUMNS: tl.constexpr,
):
    """The last tokens of every run go to the state, as many as it has room for."""
    row = tl.program_id(0).to(tl.int64)
    request, position = tl.load(requests_ptr + row), tl.load(positions_ptr + row).to(tl.int32)
    kept = (request >= 0) & (request < requests) & (tl.load(stop_ptr + row) - row <= tokens)
    held = ring_ptr + request * stride_ring
    keep_token(projected_ptr, held, row, position, kept, stride_projected, tokens, COLUMNS)
