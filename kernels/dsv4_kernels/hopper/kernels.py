"""The three kernels of Hopper's paged logits: single rows of few pages, single rows, and groups of rows.

Layout split64. Queries and payload are read as int32 words, query scales as bytes, key scales as pairs of bytes. A
program takes a run of pages by the rows' own lengths, not by the width of the output.
Strides of pages are compile-time constants, because a pool has one; all other strides and counts are not. `bound` is
what table and output have room for: a length on the GPU cannot be checked before.
"""

# Device code: its types are the compiler's.
# mypy: ignore-errors

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from dsv4_kernels.hopper.score import QUERY_MEMORY, score, stage_row, store_page, weight_memory
from dsv4_kernels.hopper.shares import COST, cost_of, share_of_pages
from dsv4_kernels.hopper.tile import COLUMN, key_offsets, load_page, pin, tile_groups, unpack_page

# Triton 3.6 calls it thread_barrier.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
FAR = gl.constexpr(0x7FFFFFFF)
# One compilation must serve every table width, output width and number of rows.
RUNTIME = (
    "rows",
    "bound",
    "table_stride",
    "weights_stride",
    "out_stride",
    "weight_scale",
    "splits",
    "programs",
    "per_program",
)


@gluon.jit(do_not_specialize=RUNTIME)
def brief_kernel(
    query_ptr, query_scale_ptr, keys_ptr, scales_ptr, table_ptr, weights_ptr, ends_ptr, out_ptr, bound,
    table_stride, weights_stride, out_stride, weight_scale, splits,
    HEADS: gl.constexpr, KEYS_STRIDE: gl.constexpr, SCALES_STRIDE: gl.constexpr,
):  # fmt: skip
    """Every `splits`-th page of a row, for single rows and for launches of few pages: only keys wait for the length."""
    row = (gl.program_id(0) // splits).to(gl.int64)
    number = gl.program_id(0) % splits
    table_row = table_ptr + row * table_stride
    # Past the row's keys this entry is not followed.
    page = gl.load(table_row + number)
    length = gl.minimum(gl.load(ends_ptr + row), bound)
    if number * 64 < length:
        words_at, scales_at = key_offsets()
        x, y, s = load_page(keys_ptr, scales_ptr, page, words_at, scales_at, KEYS_STRIDE, SCALES_STRIDE)
        query_memory = gl.allocate_shared_memory(gl.float8e5, [HEADS, 128], QUERY_MEMORY)
        sum_memory = gl.allocate_shared_memory(gl.float16, [8, HEADS], weight_memory(HEADS))
        factor = weight_scale * stage_row(
            query_memory, sum_memory, query_ptr + row * HEADS * 16, query_scale_ptr + row * 256,
            weights_ptr + row * weights_stride, 0, HEADS,
        )  # fmt: skip
        fence_async_shared()
        barrier()
        queries, weights = query_memory.permute([1, 0]), sum_memory.permute([1, 0])
        out_row = out_ptr + row * out_stride
        a, top = unpack_page(x, y, s, HEADS)
        u = score(a, queries, weights, HEADS)
        at = number * 64
        store_page(u, factor, top, out_row + at, out_stride, 0, length - at, 1, False)
        # Apart from the first page, whose code is thus short: it has yet to be fetched.
        at += splits * 64
        while at < length:
            page = gl.load(table_row + at // 64)
            x, y, s = load_page(keys_ptr, scales_ptr, page, words_at, scales_at, KEYS_STRIDE, SCALES_STRIDE)
            a, top = unpack_page(x, y, s, HEADS)
            u = score(a, queries, weights, HEADS)
            store_page(u, factor, top, out_row + at, out_stride, 0, length - at, 1, False)
            at += splits * 64


@gluon.jit(do_not_specialize=RUNTIME)
def rows_kernel(
    query_ptr, query_scale_ptr, keys_ptr, scales_ptr, table_ptr, weights_ptr, starts_ptr, ends_ptr, out_ptr,
    rows, bound,
    table_stride, weights_stride, out_stride, weight_scale, programs, per_program,
    HEADS: gl.constexpr, WINDOWED: gl.constexpr, KEYS_STRIDE: gl.constexpr, SCALES_STRIDE: gl.constexpr,
):  # fmt: skip
    """An equal share of all rows' pages, row after row: so neither unequal rows nor a wide table cost anything."""
    left, row, spent = share_of_pages(starts_ptr, ends_ptr, rows, bound, programs, per_program, WINDOWED)
    query_memory = gl.allocate_shared_memory(gl.float8e5, [HEADS, 128], QUERY_MEMORY)
    sum_memory = gl.allocate_shared_memory(gl.float16, [8, HEADS], weight_memory(HEADS))
    queries, weights = query_memory.permute([1, 0]), sum_memory.permute([1, 0])
    words_at, scales_at = key_offsets()
    while left > 0:
        end = gl.minimum(gl.load(ends_ptr + row), bound)
        start = gl.load(starts_ptr + row) if WINDOWED else end * 0
        low_page = start // 64
        cost = cost_of(gl.where(start < end, (end + 63) // 64 - low_page, 0))
        spend = gl.minimum(left, cost - spent)
        p = low_page + gl.maximum(spent - COST, 0)
        stop = low_page + gl.maximum(spent + spend - COST, 0)
        if p < stop:
            wide = row.to(gl.int64)
            table_row = table_ptr + wide * table_stride
            page0 = gl.load(table_row + p)
            page1 = gl.load(table_row + gl.minimum(p + 1, stop - 1))
            x0, y0, s0 = load_page(keys_ptr, scales_ptr, page0, words_at, scales_at, KEYS_STRIDE, SCALES_STRIDE)
            x1, y1, s1 = load_page(keys_ptr, scales_ptr, page1, words_at, scales_at, KEYS_STRIDE, SCALES_STRIDE)
            page0 = gl.load(table_row + gl.minimum(p + 2, stop - 1))
            page1 = gl.load(table_row + gl.minimum(p + 3, stop - 1))
            # The row before may still be read.
            barrier()
            factor = weight_scale * stage_row(
                query_memory, sum_memory, query_ptr + wide * HEADS * 16, query_scale_ptr + wide * 256,
                weights_ptr + wide * weights_stride, 0, HEADS,
            )  # fmt: skip
            fence_async_shared()
            barrier()
            out_row = out_ptr + wide * out_stride
            while p + 1 < stop:
                a, top = unpack_page(x0, y0, s0, HEADS)
                x0, y0, s0 = load_page(keys_ptr, scales_ptr, page0, words_at, scales_at, KEYS_STRIDE, SCALES_STRIDE)
                page0 = gl.load(table_row + gl.minimum(p + 4, stop - 1))
                pin()
                u = score(a, queries, weights, HEADS)
                at = p * 64
                store_page(u, factor, top, out_row + at, out_stride, start - at, end - at, 1, WINDOWED)
                a, top = unpack_page(x1, y1, s1, HEADS)
                x1, y1, s1 = load_page(keys_ptr, scales_ptr, page1, words_at, scales_at, KEYS_STRIDE, SCALES_STRIDE)
                page1 = gl.load(table_row + gl.minimum(p + 5, stop - 1))
                pin()
                u = score(a, queries, weights, HEADS)
                at = p * 64 + 64
                store_page(u, factor, top, out_row + at, out_stride, start - at, end - at, 1, WINDOWED)
                p += 2
            if p < stop:
                a, top = unpack_page(x0, y0, s0, HEADS)
                u = score(a, queries, weights, HEADS)
                at = p * 64
                store_page(u, factor, top, out_row + at, out_stride, start - at, end - at, 1, WINDOWED)
        left -= spend
        row += 1
        spent = 0


@gluon.jit(do_not_specialize=RUNTIME)
def groups_kernel(
    query_ptr, query_scale_ptr, keys_ptr, scales_ptr, table_ptr, weights_ptr, sequences_ptr, starts_ptr, ends_ptr,
    out_ptr, rows, bound,
    table_stride, weights_stride, out_stride, weight_scale, splits,
    HEADS: gl.constexpr, GROUP: gl.constexpr, WINDOWED: gl.constexpr,
    KEYS_STRIDE: gl.constexpr, SCALES_STRIDE: gl.constexpr,
):  # fmt: skip
    """GROUP consecutive rows: each run of rows of one sequence in it meets each unpacked page once, as GROUP * HEADS
    columns. The head weights are block-diagonal, so that columns 2 r and 2 r + 1 of the sums are row r of the group.
    """
    N: gl.constexpr = GROUP * HEADS
    row0 = (gl.program_id(0) // splits).to(gl.int64) * GROUP
    split = gl.program_id(0) % splits
    words_at, scales_at = key_offsets()
    query_memory = gl.allocate_shared_memory(gl.float8e5, [N, 128], QUERY_MEMORY)
    sum_memory = gl.allocate_shared_memory(gl.float16, [8, N], weight_memory(N))
    member = tile_groups()
    factor = member.to(gl.float32) * 0.0
    for i in gl.static_range(GROUP):
        row = gl.minimum(row0 + i, rows - 1)
        norm = stage_row(
            query_memory, sum_memory, query_ptr + row * HEADS * 16, query_scale_ptr + row * 256,
            weights_ptr + row * weights_stride, i, HEADS,
        )  # fmt: skip
        factor = gl.where(member == i, norm * weight_scale, factor)
    fence_async_shared()
    barrier()
    queries, weights = query_memory.permute([1, 0]), sum_memory.permute([1, 0])
    out_rows = out_ptr + row0 * out_stride

    index = gl.arange(0, 4, COLUMN)
    own = gl.minimum(row0 + index, rows - 1)
    real = (index < GROUP) & (row0 + index < rows)
    sequences = gl.load(sequences_ptr + own)
    ends = gl.where(real, gl.minimum(gl.load(ends_ptr + own), bound), 0)
    starts = gl.load(starts_ptr + own) if WINDOWED else ends * 0
    for lead in range(GROUP):
        sequence = gl.load(sequences_ptr + gl.minimum(row0 + lead, rows - 1))
        before = gl.load(sequences_ptr + gl.minimum(row0 + gl.maximum(lead - 1, 0), rows - 1))
        if (before != sequence) | (lead == 0):
            run = (sequences == sequence) & (index >= lead) & (starts < ends)
            run_ends = gl.where(run, ends, 0)
            pages = (gl.max(run_ends, axis=0) + 63) // 64
            low_page = gl.min(gl.where(run, starts, FAR), axis=0) // 64
            share = (gl.maximum(pages - low_page, 0) + splits - 1) // splits
            first = low_page + split * share
            last = gl.minimum(first + share, pages)
            if first < last:
                row_starts, row_ends = gl.expand_dims(starts, 0), gl.expand_dims(run_ends, 0)
                table_row = table_ptr + sequence.to(gl.int64) * table_stride
                page = gl.load(table_row + first)
                x, y, s = load_page(keys_ptr, scales_ptr, page, words_at, scales_at, KEYS_STRIDE, SCALES_STRIDE)
                page = gl.load(table_row + gl.minimum(first + 1, last - 1))
                for p in range(first, last):
                    a, top = unpack_page(x, y, s, N)
                    x, y, s = load_page(keys_ptr, scales_ptr, page, words_at, scales_at, KEYS_STRIDE, SCALES_STRIDE)
                    page = gl.load(table_row + gl.minimum(p + 2, last - 1))
                    pin()
                    u = score(a, queries, weights, N)
                    at = p * 64
                    page_ptr = out_rows + at
                    store_page(u, factor, top, page_ptr, out_stride, row_starts - at, row_ends - at, GROUP, WINDOWED)
