"""FP4 paged logits for CDNA4: one wave is one workgroup, so page ids, addresses and loop control are scalar.

A wave takes up to four consecutive rows and a share of their pages; the rows of one sequence meet each key in registers
once. Nothing passes through LDS. The same kernel serves decode, prefill windows and row groups, in the layouts split64,
split8 and record68, and V4.1's candidate blocks out of records.
"""

# Device code: its types are the compiler's, its tuples grow by addition only.
# mypy: ignore-errors
# ruff: noqa: RUF005
# fmt: off

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from dsv4_kernels.gfx950.epilogue import prepare_weights
from dsv4_kernels.gfx950.page import first_page, payload_of, scales_of, score_pages

FAR = gl.constexpr(0x7FFFFFFF)


@gluon.jit
def _windows(
    seq_ptr, starts_ptr, ends_ptr, row0, rows, lead, R: gl.constexpr, SHARED: gl.constexpr, WINDOWED: gl.constexpr
):
    """Of each of R rows the window it is scored in, empty unless it belongs to the run that begins at row `lead`.

    Returns the windows, the union of those that are not empty, and the part that all R rows see.
    """
    lows = ()
    highs = ()
    first = FAR + 0 * row0
    last = 0 * row0
    inner_first = 0 * row0
    inner_last = FAR + 0 * row0
    for r in gl.static_range(R):
        row = gl.minimum(row0 + r, rows - 1)
        low = 0 * row0
        if WINDOWED:
            low = gl.load(starts_ptr + row)
        high = gl.load(ends_ptr + row)
        if R > 1:
            inside = (row0 + r < rows) & (r >= lead)
            if SHARED:
                inside = inside & (gl.load(seq_ptr + row) == gl.load(seq_ptr + gl.minimum(row0 + lead, rows - 1)))
            high = gl.where(inside, high, 0)
        first = gl.minimum(first, gl.where(low < high, low, FAR))
        last = gl.maximum(last, gl.where(low < high, high, 0))
        inner_first = gl.maximum(inner_first, low)
        inner_last = gl.minimum(inner_last, high)
        lows = lows + (low,)
        highs = highs + (high,)
    return lows, highs, first, last, inner_first, inner_last


@gluon.jit
def _score_run(rows_data, pool, table_ptr: tl.const, windows, out, where, HEADS: gl.constexpr, R: gl.constexpr,
               SHARED: gl.constexpr, WINDOWED: gl.constexpr, FAST: gl.constexpr, ORDER: gl.constexpr,
               MFMA: gl.constexpr, LANES: gl.constexpr):
    """Score one run of rows of one sequence against this wave's share of its pages."""
    payload_ptr, scale_ptr, payload_stride, scale_stride, stride_table = pool
    seq_ptr, starts_ptr, ends_ptr = windows
    out_ptr, stride_out = out
    row0, rows, lead, split, split_shift = where
    B: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=MFMA, k_width=16)
    BS: gl.constexpr = gl.amd.cdna4.get_mfma_scale_layout(B, [16, 4])
    lows, highs, first, last, inner_first, inner_last = _windows(
        seq_ptr, starts_ptr, ends_ptr, row0, rows, lead, R, SHARED, WINDOWED
    )
    begin = first >> 6
    if ORDER.two_halves:
        # A wave's share begins with a page, so that the parity of its loop tells the half.
        begin = begin // 2 * 2
    pages = ((last + 63) >> 6) - begin
    share = (pages + (1 << split_shift) - 1) >> split_shift
    if ORDER.two_halves:
        share = (share + 1) // 2 * 2
    p0 = begin + split * share
    p1 = gl.minimum(p0 + share, begin + pages)
    if (first < last) & (p0 < p1):
        seq = row0 + lead
        if SHARED:
            seq = gl.load(seq_ptr + seq)
        kb = gl.arange(0, 64, layout=gl.SliceLayout(1, B))
        nb = gl.arange(0, 16, layout=gl.SliceLayout(0, B))
        ns = gl.arange(0, 16, layout=gl.SliceLayout(1, BS))
        cs = gl.arange(0, 4, layout=gl.SliceLayout(0, BS))
        table_row = table_ptr + seq.to(gl.int64) * stride_table
        key = nb
        scaled = ns
        if ORDER.own_ids:
            key = nb % 8
            scaled = ns % 8
        key_offsets = (kb // 16 * ORDER.of.payload.group_stride + kb % 16)[:, None] + payload_of(key, ORDER)[None, :]
        if ORDER.word_scales:
            scale_offsets = (ns * (ORDER.of.scale.slot_stride // 4))[:, None] + (
                cs * (ORDER.of.scale.lane_stride // 4)
            )[None, :]
        else:
            lanes: gl.constexpr = ORDER.of.scale.lanes
            group = cs % lanes * ORDER.of.scale.lane_stride + cs // lanes
            scale_offsets = (ORDER.of.scale.base + scales_of(scaled, ORDER))[:, None] + group[None, :]
        # Look-ahead stops at the last id of the row (own ids) or of this wave: nothing past it is read.
        if ORDER.own_ids:
            table = (table_row + p0 * 8, (((last + 7) >> 3) - 1 - p0 * 8) * 4, nb // 8 * 4)
        elif ORDER.two_halves:
            table = (table_row + (p0 >> 1), ((p1 - p0 - 1) >> 1) * 4, 0)
        else:
            table = (table_row + p0, (p1 - p0 - 1) * 4, 0)
        source = (payload_ptr, scale_ptr, key_offsets, scale_offsets, payload_stride, scale_stride)
        keys, scales, following = first_page(source, table, ORDER)
        state = (keys, scales, following, gl.arange(0, 64, layout=LANES))
        # One buffer for all R rows: a descriptor each would be copied in every iteration.
        out_base = out_ptr + row0.to(gl.int64) * stride_out + p0 * 64
        sink = (out_base, stride_out, p0 * 64, lows, highs)
        # Pages up to a and from b on are not seen whole by every row and need masks; a, b in bytes of the table.
        inner = gl.minimum(gl.maximum((inner_first + 63) >> 6, p0), p1)
        a = (inner - p0) * 4
        b = (gl.maximum(gl.minimum(inner_last >> 6, p1), inner) - p0) * 4
        end = (p1 - p0) * 4
        state = score_pages(0, a, state, rows_data, source, table, sink,
                            HEADS, R, True, FAST, ORDER, MFMA, LANES)
        state = score_pages(a, b, state, rows_data, source, table, sink,
                            HEADS, R, False, FAST, ORDER, MFMA, LANES)
        score_pages(b, end, state, rows_data, source, table, sink,
                    HEADS, R, True, FAST, ORDER, MFMA, LANES)


# One compilation whatever the strides, counts and alignments of slices: a table may have any width.
@gluon.jit(
    do_not_specialize=["rows", "stride_table", "stride_weights", "stride_out",
                       "split_shift"],
    do_not_specialize_on_alignment=["table_ptr", "seq_ptr", "starts_ptr", "ends_ptr", "out_ptr"],
)
def paged_logits_kernel(q_ptr, q_scale_ptr, payload_ptr, scale_ptr, table_ptr: tl.const, weights_ptr,
                        seq_ptr: tl.const, starts_ptr: tl.const, ends_ptr: tl.const, out_ptr, rows,
                        payload_stride, scale_stride, stride_table, stride_weights, stride_out, weight_scale,
                        split_shift,
                        HEADS: gl.constexpr, COLUMNS: gl.constexpr, R: gl.constexpr, SHARED: gl.constexpr,
                        WINDOWED: gl.constexpr, FAST: gl.constexpr, ORDER: gl.constexpr):
    """Grid (ceil(rows / R), 2 ** split_shift), one wave each; `ops.paged_logits` says what is computed.

    Strides of pages are in bytes and multiples of 16.
    """
    MFMA: gl.constexpr = gl.amd.AMDMFMALayout(
        version=4, instr_shape=[16, 16, 128], transposed=False, warps_per_cta=[1, 1]
    )
    A: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=MFMA, k_width=16)
    AS: gl.constexpr = gl.amd.cdna4.get_mfma_scale_layout(A, [HEADS, 4])
    LANES: gl.constexpr = gl.BlockedLayout([1], [64], [1], [0])
    row0 = gl.program_id(0) * R
    split = gl.program_id(1)
    ha = gl.arange(0, HEADS, layout=gl.SliceLayout(1, A))
    ka = gl.arange(0, 64, layout=gl.SliceLayout(0, A))
    hs = gl.arange(0, HEADS, layout=gl.SliceLayout(1, AS))
    cs = gl.arange(0, 4, layout=gl.SliceLayout(0, AS))
    hw = gl.arange(0, HEADS, layout=gl.SliceLayout(1, MFMA))
    q = ()
    q_scale = ()
    w = ()
    for r in gl.static_range(R):
        row = gl.minimum(row0 + r, rows - 1).to(gl.int64)
        q = q + (gl.load(q_ptr + row * (HEADS * 64) + (ha[:, None] * 64 + ka[None, :])),)
        at = (cs * (16 * COLUMNS))[None, :] + ((hs % 16) * COLUMNS + hs // 16)[:, None]
        q_scale = q_scale + (gl.load(q_scale_ptr + row * (64 * COLUMNS) + at),)
        weight = gl.load(weights_ptr + row * stride_weights + hw).to(gl.float32) * weight_scale
        w = w + (prepare_weights(weight[:, None] + gl.zeros([HEADS, 16], gl.float32, MFMA), HEADS, FAST),)
    rows_data = (q, q_scale, w)
    pool = (payload_ptr, scale_ptr, payload_stride, scale_stride, stride_table)
    windows = (seq_ptr, starts_ptr, ends_ptr)
    out = (out_ptr, stride_out)
    if R == 1:
        where = (row0, rows, 0, split, split_shift)
        _score_run(rows_data, pool, table_ptr, windows, out, where,
                   HEADS, R, SHARED, WINDOWED, FAST, ORDER, MFMA, LANES)
    else:
        for lead in range(0, R):
            here = gl.minimum(row0 + lead, rows - 1)
            new = gl.load(seq_ptr + here) != gl.load(seq_ptr + gl.maximum(here - 1, 0))
            if (row0 + lead < rows) & ((lead == 0) | new):
                where = (row0, rows, lead, split, split_shift)
                _score_run(rows_data, pool, table_ptr, windows, out, where,
                           HEADS, R, SHARED, WINDOWED, FAST, ORDER, MFMA, LANES)
