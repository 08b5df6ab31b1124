"""64 keys, a page of split64 or eight of split8: loads straight into matrix operands, scores of one to four rows.

Both layouts keep the 16 bytes of a key's group together, which is what a lane holds of the matrix operand. In split64
the page id is one scalar and a lane's four scales are one word; in split8 each lane has a page id of its own.
"""

# Device code: its types are the compiler's, its tuples grow by addition only, and both arms of a branch must return.
# mypy: ignore-errors
# ruff: noqa: RUF005, RET505
# fmt: off

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import hint

from dsv4_kernels.gfx950.epilogue import head_sum, transpose_reduce


@gluon.jit
def load_tile(source, page, T: gl.constexpr, PAGE8: gl.constexpr, DENSE: gl.constexpr):
    """Tile T (16 keys): 16 bytes a lane, the B operand as the matrix instruction wants it."""
    payload_ptr, _, key_offsets, _, stride, _ = source
    # Strides come in units of 16 bytes, so that the compiler knows a lane's 16 bytes to be aligned.
    if PAGE8:
        ids = page[T].to(gl.int64)
        at = ids * 512 if DENSE else ids * stride * 16
        return gl.load(payload_ptr + (at[None, :] + key_offsets))
    else:
        base = payload_ptr + page * 4096 if DENSE else payload_ptr + page * stride * 16
        return gl.load(base + T * 256 + key_offsets)


@gluon.jit
def load_scales(source, page, PAGE8: gl.constexpr, DENSE: gl.constexpr):
    """Scales of 64 keys: a word a lane whose byte t belongs to tile t (split64), or a byte a lane and tile (split8)."""
    _, scale_words_ptr, _, scale_offsets, _, stride = source
    if PAGE8:
        scale_ptr = scale_words_ptr.cast(gl.pointer_type(gl.uint8), bitcast=True)
        scales = ()
        for t in gl.static_range(4):
            # The same lanes hold a key's scales and its bytes: nothing moves.
            ids = gl.convert_layout(page[t], gl.SliceLayout(1, scale_offsets.type.layout), assert_trivial=True)
            at = ids.to(gl.int64) * 32 if DENSE else ids.to(gl.int64) * stride * 4
            scales = scales + (gl.load(scale_ptr + (at[:, None] + scale_offsets)),)
        return scales
    else:
        base = scale_words_ptr + page * 64 if DENSE else scale_words_ptr + page * stride
        return gl.load(base + scale_offsets)


@gluon.jit
def load_ids(table_ptr, offset, last_id, lanes, PAGE8: gl.constexpr):
    """Page ids of the 64 keys whose split64 id stands at byte `offset` of the table row; none past `last_id` is read.

    split64: one scalar load from a constant table. split8: for each tile the id of each lane's key.
    """
    if PAGE8:
        ids = ()
        for t in gl.static_range(4):
            ids = ids + (gl.load(table_ptr + gl.minimum(offset * 2 + t * 2 + lanes, last_id)),)
        return ids
    else:
        row = table_ptr.cast(gl.pointer_type(gl.int8, const=True), bitcast=True)
        at = row + gl.minimum(offset.to(gl.uint32), last_id.to(gl.uint32)).to(gl.uint64)
        return gl.load(at.cast(gl.pointer_type(gl.int32, const=True), bitcast=True))


@gluon.jit
def scale_of(scales, T: gl.constexpr, PAGE8: gl.constexpr):
    if PAGE8:
        return scales[T]
    else:
        return ((scales >> (8 * T)) & 255).to(gl.uint8)


@gluon.jit
def scaled_product(keys, key_scale, q, q_scale, HEADS: gl.constexpr, MFMA: gl.constexpr):
    """[HEADS, 16] scores of 16 keys by v_mfma_scale_f32_16x16x128_f8f6f4."""
    zero = gl.zeros([HEADS, 16], gl.float32, MFMA)
    return gl.amd.cdna4.mfma_scaled(
        a=q, a_scale=q_scale, a_format="e2m1", b=keys, b_scale=key_scale, b_format="e2m1", acc=zero
    )


@gluon.jit
def score_page(state, next_offset, rows, source, table, sink, HEADS: gl.constexpr, R: gl.constexpr,
               MASKED: gl.constexpr, FAST: gl.constexpr, PAGE8: gl.constexpr, DENSE: gl.constexpr, MFMA: gl.constexpr,
               LANES: gl.constexpr):
    """Score the 64 keys held in `state` for R rows while the next are being fetched; returns the next state.

    A tile of the next page is requested as soon as that tile has met the last row, so a page of loads is always in
    flight. Scheduling barriers keep that order.
    """
    keys, scales, page, column = state
    q, q_scale, w = rows
    table_ptr, last_id, lanes = table
    out, stride_out, position, lows, highs = sink
    sums = ()
    fetched = ()
    following = page
    if not PAGE8:
        page = page.to(gl.int64)
    held = ()
    for t in gl.static_range(4):
        held = held + (scale_of(scales, t, PAGE8),)
    for t in gl.static_range(4):
        for r in gl.static_range(R):
            score = scaled_product(keys[t], held[t], q[r], q_scale[r], HEADS, MFMA)
            hint.sched_barrier()
            if r == R - 1:
                if t == 0:
                    scales = load_scales(source, page, PAGE8, DENSE)
                fetched = fetched + (load_tile(source, page, t, PAGE8, DENSE),)
                if t == 0:
                    # After the last wait for the previous ids: scalar loads return out of order.
                    following = load_ids(table_ptr, next_offset, last_id, lanes, PAGE8)
            sums = sums + (head_sum(score, w[r], HEADS, FAST, LANES),)
            hint.sched_barrier()
    for r in gl.static_range(R):
        total = transpose_reduce(sums[r], sums[R + r], sums[2 * R + r], sums[3 * R + r], LANES)
        if MASKED:
            at = position + column
            mask = (at >= lows[r]) & (at < highs[r])
            gl.amd.cdna4.buffer_store(total, out, column + r * stride_out, mask=mask)
        else:
            gl.amd.cdna4.buffer_store(total, out, column + r * stride_out)
    return fetched, scales, following, column + 64


@gluon.jit
def score_pages(first, last, state, rows, source, table, sink, HEADS: gl.constexpr, R: gl.constexpr,
                MASKED: gl.constexpr, FAST: gl.constexpr, PAGE8: gl.constexpr, DENSE: gl.constexpr,
                MFMA: gl.constexpr, LANES: gl.constexpr):
    """Score the runs of 64 keys whose split64 ids stand at byte offsets `first` to `last` of the table row."""
    for i in range(first, last, 4):
        state = score_page(state, i + 8, rows, source, table, sink,
                           HEADS, R, MASKED, FAST, PAGE8, DENSE, MFMA, LANES)
    return state
