"""Main KV rows into pages: the portable kernel and its host side."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.kv_layout import Code
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.portable import kv_codes, kv_math
from dsv4_kernels.triton_launch import launch

Machine = Literal["any", "sm89", "gfx950"]
"""Whose conversions of several values at once are used."""

NATIVE: dict[Machine, int] = {"any": 0, "sm89": kv_math.SM89.value, "gfx950": kv_math.GFX950.value}

STORE_SHAPES: dict[Code, tuple[int, int]] = {"e4m3": (2, 1), "e2m1": (4, 2)}
"""Rows and warps of a program of the store, the fastest of those tried on an H200."""


@triton.jit
def row_places(pages_ptr, page_stride, slot, OF: tl.constexpr, PAGE: tl.constexpr):
    """Pointers [R] to the data and to the scales of rows at int64 `slot` [R], in pages of PAGE rows of layout OF."""
    slot = slot.to(tl.uint32)
    page, o = pages_ptr + (slot // PAGE).to(tl.int64) * page_stride, slot % PAGE
    return page + o * OF.row_stride, page + o * OF.scale_stride + OF.scale_base(PAGE)


@triton.jit
def load_pairs(at, live, FIRST: tl.constexpr, N: tl.constexpr, PAIRED: tl.constexpr):
    """Even and odd values, float32 [R, N], from pair FIRST on of rows that begin at `at` [R].

    PAIRED: rows are bfloat16, and two values one aligned word.
    """
    j, mask = FIRST + tl.arange(0, N)[None, :], live[:, None]
    if PAIRED:
        return kv_math.of_pairs(tl.load(at.to(tl.pointer_type(tl.int32))[:, None] + j, mask=mask, other=0))
    even = tl.load(at[:, None] + 2 * j, mask=mask, other=0.0)
    odd = tl.load(at[:, None] + (2 * j + 1), mask=mask, other=0.0)
    return even.to(tl.float32), odd.to(tl.float32)


@triton.jit
def _put_words(at, words, mask, place, ALIGNED: tl.constexpr):
    """int32 words to byte pointers `at` [R] and the words `place` behind them; ALIGNED: `at` are multiples of 4."""
    if ALIGNED:
        tl.store(at.to(tl.pointer_type(tl.int32))[:, None] + place, words, mask=mask)
    else:
        for byte in tl.static_range(4):
            tl.store(at[:, None] + (4 * place + byte), (words >> 8 * byte).to(tl.uint8), mask=mask)


@triton.jit
def put_coded(
    even,
    odd,
    data,
    scales,
    live,
    FIRST: tl.constexpr,
    R: tl.constexpr,
    N: tl.constexpr,
    END: tl.constexpr,
    OF: tl.constexpr,
    ALIGNED: tl.constexpr,
    NARROW: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Quantise values [R, N] by twos, from pair FIRST of rows on, and store those before pair END at `data`, `scales`.

    NARROW: the values are those of bfloat16.
    """
    GROUP: tl.constexpr = OF.group // 2
    if OF.code == "e2m1":
        pairs, bytes_ = kv_codes.quantize_e2m1(even, odd, R, N, NARROW, NATIVE)
        if pairs.dtype == tl.int32:
            place = FIRST // 4 + tl.arange(0, N // 4)[None, :]
            _put_words(data, pairs, live[:, None] & (place < END // 4), place, ALIGNED)
        else:
            place = FIRST + tl.arange(0, N)[None, :]
            tl.store(data[:, None] + place, pairs, mask=live[:, None] & (place < END))
    else:
        words, bytes_ = kv_codes.quantize_e4m3(even, odd, R, N, OF.group, NATIVE)
        place = FIRST // 2 + tl.arange(0, N // 2)[None, :]
        _put_words(data, words, live[:, None] & (place < END // 2), place, ALIGNED)
    group = FIRST // GROUP + tl.arange(0, N // GROUP)[None, :]
    tl.store(scales[:, None] + group, bytes_.to(tl.uint8), mask=live[:, None] & (group < END // GROUP))


@triton.jit
def put_plain(
    even,
    odd,
    data,
    scales,
    live,
    FIRST: tl.constexpr,
    N: tl.constexpr,
    ALIGNED: tl.constexpr,
    NARROW: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Store what RoPE turns of values [R, N] by twos, from pair FIRST on, as bfloat16; pad the scales.

    NARROW: the values are those of bfloat16.
    """
    pair = FIRST + tl.arange(0, N)[None, :]
    words = kv_math.canonical_pairs(even, odd) if NARROW else kv_math.exact_pairs(even, odd, NATIVE)
    # Before them stand 448 codes of a byte; a pair of them has four bytes.
    _put_words(data + 448 - 896, words, live[:, None] & (pair >= 224), pair, ALIGNED)
    tl.store(scales + 7, tl.zeros_like(live).to(tl.uint8), mask=live)


@triton.jit
def _store_kernel(
    rows_ptr,
    slots_ptr,
    pages_ptr,
    rows,
    slots,
    stride_rows,
    page_stride,
    R: tl.constexpr,
    OF: tl.constexpr,
    PAGE: tl.constexpr,
    ALIGNED: tl.constexpr,
    NATIVE: tl.constexpr,
    PAIRED: tl.constexpr,
    NARROW: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    slot = tl.load(slots_ptr + row, mask=row < rows, other=-1)
    live = (slot >= 0) & (slot < slots)
    data, scales = row_places(pages_ptr, page_stride, slot, OF, PAGE)
    at = rows_ptr + row * stride_rows
    even, odd = load_pairs(at, live, 0, 256, PAIRED)
    put_coded(even, odd, data, scales, live, 0, R, 256, OF.coded // 2, OF, ALIGNED, NARROW, NATIVE)
    if OF.plain_rope:
        even, odd = load_pairs(at, live, 224, 32, PAIRED)
        put_plain(even, odd, data, scales, live, 224, 32, ALIGNED, NARROW, NATIVE)


def store_kv(pool: KVPool, rows: Tensor, slots: Tensor, machine: Machine | None = None) -> None:
    """See `kv_ops.store_kv`; conversions of `machine`, or those that every device of the pool's kind has."""
    n = rows.shape[0]
    if not n:
        return
    at_once, warps = STORE_SHAPES[pool.layout.code]
    arguments = {
        "rows_ptr": rows,
        "slots_ptr": slots,
        "pages_ptr": pool.pages,
        "rows": n,
        "slots": pool.slots,
        "stride_rows": rows.stride(0),
        "page_stride": pool.page_stride,
    }
    of_rows = {"R": at_once, "PAIRED": paired(rows), "NARROW": rows.dtype == torch.bfloat16}
    launch(_store_kernel, (triton.cdiv(n, at_once),), arguments, kv_constants(pool, machine) | of_rows, warps)


def paired(x: Tensor) -> bool:
    """Whether two neighbours of `x` are one aligned 32-bit word."""
    return x.dtype == torch.bfloat16 and x.data_ptr() % 4 == 0 and all(s % 2 == 0 for s in x.stride()[:-1])


def kv_constants(pool: KVPool, machine: Machine | None = None) -> dict[str, Any]:
    """Keyword arguments that the kernels take for a pool's layout and device, or for `machine`."""
    return {
        "OF": pool.layout,
        "PAGE": pool.page_rows,
        "ALIGNED": pool.pages.data_ptr() % 4 == 0 and pool.page_stride % 4 == 0,
        "NATIVE": native(pool.device) if machine is None else NATIVE[machine],
    }


@cache
def native(device: torch.device) -> int:
    """The kernels' NATIVE on a device: AMD's conversions are left to the gfx950 backend."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return NATIVE["sm89" if nvidia and torch.cuda.get_device_capability(device) >= (8, 9) else "any"]
