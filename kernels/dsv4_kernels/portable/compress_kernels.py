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
def _latents(even, odd, row, live, latent_ptr, R: tl.constexpr, NATIVE: tl.constexpr):
    """Normalised values [R, 256] by twos to the latents of rows [R] that live."""
    words = kv_math.exact_pairs(even, odd, NATIVE)
    tl.store(latent_ptr + (row * 256)[:, None] + tl.arange(0, 256)[None, :], words, mask=live[:, None])


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
        put_plain(even, odd, data, scales, live, FIRST, N, ALIGNED, NATIVE)
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
    _latents(
        tl.where(closes[:, None], even, 0.0), tl.where(closes[:, None], odd, 0.0), row, inside, latent_ptr, R, NATIVE
    )
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


@triton.jit(do_not_specialize=["rows", "at_once", "requests", "tokens", "slots", "limit", "keep"])
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
    at_once,
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
    WIDE: tl.constexpr,
    OF: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
    STORE: tl.constexpr,
):
    """Other ratios: `at_once` rows a program. With `keep` they go to the state as well."""
    begin = tl.program_id(0).to(tl.int64) * at_once
    for row in range(begin, tl.minimum(begin + at_once, rows)):
        request, position = tl.load(requests_ptr + row), tl.load(positions_ptr + row).to(tl.int32)
        used = (request >= 0) & (request < requests)
        held = ring_ptr + request * stride_ring
        if keep != 0:
            keep_token(projected_ptr, held, row, position, used, stride_projected, tokens, WINDOW // RATIO * 1024)
        if used & ((position + 1) % RATIO == 0):
            x = pool_window(projected_ptr, held, ape_ptr, row, tl.load(first_ptr + row), position, stride_projected,
                            tokens, 512, RATIO, WINDOW, PARTS, HAS_APE)  # fmt: skip
            even, odd = tl.split(tl.reshape(x, (1, 256, 2)))
            even, odd = kv_math.of_pairs(kv_math.bfloat16_pairs(even, odd, NATIVE))
            inverse = kv_math.inverse_rms(even, odd, eps, 1)
            even, odd = weighed(even, odd, weight_ptr, inverse, 0, 256, WIDE, NATIVE)
            one = tl.arange(0, 1)
            _latents(even, odd, row + one, one == 0, latent_ptr, 1, NATIVE)
            if STORE:
                slot = tl.load(slots_ptr + row + one)
                data, scales = row_places(pages_ptr, page_stride, slot, OF, PAGE)
                live = (slot >= 0) & (slot < slots)
                _put_turned(even, odd, data, scales, live, position - (RATIO - 1) + one, cos_ptr, sin_ptr, limit,
                            stride_angle, 0, 1, 256, OF, ALIGNED, NATIVE)  # fmt: skip
        else:
            tl.store(latent_ptr + row * 256 + tl.arange(0, 256), tl.zeros((256,), tl.int32))


@triton.jit(do_not_specialize=["rows", "at_once", "requests", "tokens"])
def keep_kernel(
    projected_ptr,
    ring_ptr,
    requests_ptr,
    positions_ptr,
    stop_ptr,
    rows,
    at_once,
    requests,
    tokens,
    stride_projected,
    stride_ring,
    COLUMNS: tl.constexpr,
):
    """The last tokens of every run go to the state, as many as it has room for; `at_once` rows a program."""
    begin = tl.program_id(0).to(tl.int64) * at_once
    for row in range(begin, tl.minimum(begin + at_once, rows)):
        request, position = tl.load(requests_ptr + row), tl.load(positions_ptr + row).to(tl.int32)
        kept = (request >= 0) & (request < requests) & (tl.load(stop_ptr + row) - row <= tokens)
        held = ring_ptr + request * stride_ring
        keep_token(projected_ptr, held, row, position, kept, stride_projected, tokens, COLUMNS)
