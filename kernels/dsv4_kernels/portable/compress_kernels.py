"""What a compressor's entries become, in one launch: latents, and main KV rows in pages. The portable kernels."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from dsv4_kernels.portable import kv_math
from dsv4_kernels.portable.kv_math import SM89
from dsv4_kernels.portable.kv_norm_rope import turned, weighed
from dsv4_kernels.portable.kv_store import load_pairs, put_coded, put_plain, row_places
from dsv4_kernels.portable.pool_window import keep_token, pool_window


@triton.jit
def _latents(even, odd, row, closes, inside, latent_ptr):
    """Normalised values [R, 256] by twos to the latents of those rows [R] that `closes` an entry; zeros to others.

    Of the rows that are `inside`.
    """
    words = tl.where(closes[:, None], kv_math.canonical_pairs(even, odd), 0)
    tl.store(latent_ptr + (row * 256)[:, None] + tl.arange(0, 256)[None, :], words, mask=inside[:, None])


@triton.jit
def _used(row, inside, requests_ptr, requests):
    """Which of rows [R] that are `inside` belong to one of so many requests."""
    request = tl.load(requests_ptr + row, mask=inside, other=-1)
    return (request >= 0) & (request < requests)


@triton.jit
def _put_zeros(row, live, latent_ptr, R: tl.constexpr):
    """The latents of rows [R] that close no entry."""
    at = (row * 256)[:, None] + tl.arange(0, 256)[None, :]
    tl.store(latent_ptr + at, tl.zeros((R, 256), tl.int32), mask=live[:, None])


@triton.jit
def _put_turned(
    even,
    odd,
    data,
    scales,
    live,
    position,
    cos_ptr,
    sin_ptr,
    limit,
    stride_angle,
    FIRST: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
    OF: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """RoPE of values [R, N] by twos, from pair FIRST of rows on, and their store."""
    even, odd = turned(even, odd, cos_ptr, sin_ptr, position, limit, stride_angle, live, FIRST, N, NATIVE)
    if OF.plain_rope:
        if FIRST == 0:
            put_coded(even, odd, data, scales, live, FIRST, R, N, 224, OF, ALIGNED, True, NATIVE)
        put_plain(even, odd, data, scales, live, FIRST, N, ALIGNED, True, NATIVE)
    else:
        put_coded(even, odd, data, scales, live, FIRST, R, N, 256, OF, ALIGNED, True, NATIVE)


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
    PAIRED: tl.constexpr,
    WIDE: tl.constexpr,
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
    at = projected_ptr + row * stride_projected
    even, odd = load_pairs(at, closes, 0, 256, PAIRED)
    even, odd = kv_math.of_pairs(kv_math.bfloat16_pairs(even, odd, NATIVE))
    inverse = kv_math.inverse_rms(even, odd, eps, R)
    even, odd = weighed(even, odd, weight_ptr, inverse, 0, 256, WIDE, NATIVE)
    _latents(even, odd, row, closes, inside, latent_ptr)
    if STORE:
        slot = tl.load(slots_ptr + row, mask=closes, other=-1)
        live = (slot >= 0) & (slot < slots)
        position = tl.load(positions_ptr + row, mask=live, other=0)
        data, scales = row_places(pages_ptr, page_stride, slot, OF, PAGE)
        if NATIVE == SM89:
            # The RoPE values once more, from the cache, spread over all lanes, as in `kv_norm_rope`.
            put_coded(even, odd, data, scales, live, 0, R, 256, 224, OF, ALIGNED, True, NATIVE)
            even, odd = load_pairs(at, live, 224, 32, PAIRED)
            even, odd = kv_math.of_pairs(kv_math.bfloat16_pairs(even, odd, NATIVE))
            even, odd = weighed(even, odd, weight_ptr, inverse, 224, 32, WIDE, NATIVE)
            _put_turned(even, odd, data, scales, live, position, cos_ptr, sin_ptr, limit, stride_angle,
                        224, R, 32, OF, ALIGNED, NATIVE)  # fmt: skip
        else:
            _put_turned(even, odd, data, scales, live, position, cos_ptr, sin_ptr, limit, stride_angle,
                        0, R, 256, OF, ALIGNED, NATIVE)  # fmt: skip


@triton.jit(do_not_specialize=["rows", "requests", "tokens", "slots", "limit"])
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
    rows,
    requests,
    tokens,
    slots,
    limit,
    stride_projected,
    stride_ring,
    stride_angle,
    page_stride,
    eps,
    R: tl.constexpr,
    RATIO: tl.constexpr,
    WINDOW: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_APE: tl.constexpr,
    WIDE: tl.constexpr,
    OF: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Other ratios: R rows a program. A single one goes to the state as well."""
    begin = tl.program_id(0).to(tl.int64) * R
    if R > 1:
        # All rows at once: most programs of a long ratio have none that closes an entry, and would wait row after row.
        some = begin + tl.arange(0, R)
        inside = some < rows
        positions = tl.load(positions_ptr + some, mask=inside, other=0).to(tl.int32)
        closing = _used(some, inside, requests_ptr, requests) & ((positions + 1) % RATIO == 0)
        _put_zeros(some, inside & (closing == 0), latent_ptr, R)
        end = tl.where(tl.max(closing.to(tl.int32), axis=0) > 0, tl.minimum(begin + R, rows), begin)
    else:
        end = begin + 1
    for row in range(begin, end):
        request, position = tl.load(requests_ptr + row), tl.load(positions_ptr + row).to(tl.int32)
        first = tl.load(first_ptr + row)
        used = (request >= 0) & (request < requests)
        held = ring_ptr + request * stride_ring
        if R == 1:
            keep_token(projected_ptr, held, row, position, used, stride_projected, tokens, WINDOW // RATIO * 1024)
        one = tl.arange(0, 1)
        if used & ((position + 1) % RATIO == 0):
            x = pool_window(projected_ptr, held, ape_ptr, row, first, position, stride_projected,
                            tokens, 512, RATIO, WINDOW, PARTS, HAS_APE, NATIVE)  # fmt: skip
            even, odd = tl.split(tl.reshape(x, (1, 256, 2)))
            even, odd = kv_math.of_pairs(kv_math.bfloat16_pairs(even, odd, NATIVE))
            inverse = kv_math.inverse_rms(even, odd, eps, 1)
            even, odd = weighed(even, odd, weight_ptr, inverse, 0, 256, WIDE, NATIVE)
            _latents(even, odd, row + one, one == 0, one == 0, latent_ptr)
            if STORE:
                slot = tl.load(slots_ptr + row + one)
                data, scales = row_places(pages_ptr, page_stride, slot, OF, PAGE)
                live = (slot >= 0) & (slot < slots)
                _put_turned(even, odd, data, scales, live, position - (RATIO - 1) + one, cos_ptr, sin_ptr, limit,
                            stride_angle, 0, 1, 256, OF, ALIGNED, NATIVE)  # fmt: skip
        elif R == 1:
            _put_zeros(row + one, one == 0, latent_ptr, 1)


@triton.jit(do_not_specialize=["rows", "requests", "tokens"])
def keep_kernel(
    projected_ptr,
    ring_ptr,
    requests_ptr,
    positions_ptr,
    stop_ptr,
    rows,
    requests,
    tokens,
    stride_projected,
    stride_ring,
    R: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The last tokens of every run go to the state, as many as it has room for; R rows a program."""
    begin = tl.program_id(0).to(tl.int64) * R
    some = begin + tl.arange(0, R)
    left = tl.load(stop_ptr + some, mask=some < rows, other=0) - some
    last = _used(some, some < rows, requests_ptr, requests) & (left <= tokens)
    # Most programs have none of them, and would wait row after row.
    if tl.max(last.to(tl.int32), axis=0) > 0:
        for row in range(begin, tl.minimum(begin + R, rows)):
            request, position = tl.load(requests_ptr + row), tl.load(positions_ptr + row).to(tl.int32)
            kept = (request >= 0) & (request < requests) & (tl.load(stop_ptr + row) - row <= tokens)
            held = ring_ptr + request * stride_ring
            keep_token(projected_ptr, held, row, position, kept, stride_projected, tokens, COLUMNS)
