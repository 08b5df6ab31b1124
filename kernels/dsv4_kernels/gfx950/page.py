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
def page_base(ptr, page, stride):
    """Pointer to a page: 32 bits of id times 32 of stride, which with the lane's own offset is one v_mad_u64_u32."""
    return ptr + page.to(gl.uint64) * stride.to(gl.uint32, bitcast=True).to(gl.uint64)


@gluon.jit
def load_tile(source, page, T: gl.constexpr, PAGE8: gl.constexpr):
    """Tile T (16 keys): 16 bytes a lane, the B operand as the matrix instruction wants it."""
    payload_ptr, _, key_offsets, _, stride, _ = source
    if PAGE8:
        return gl.load(page_base(payload_ptr, page, stride)[None, :] + key_offsets)
    else:
        return gl.load(page_base(payload_ptr, page, stride) + T * 256 + key_offsets)


@gluon.jit
def load_scales(source, page, PAGE8: gl.constexpr):
    """split64: a word a lane, whose byte t belongs to tile t. split8: a byte a lane of the tile that `page` names."""
    _, scale_ptr, _, scale_offsets, _, stride = source
    if PAGE8:
        # The same lanes hold a key's scales and its bytes: nothing moves.
        ids = gl.convert_layout(page, gl.SliceLayout(1, scale_offsets.type.layout), assert_trivial=True)
        return gl.load(page_base(scale_ptr, ids, stride)[:, None] + scale_offsets)
    else:
        words = page_base(scale_ptr, page, stride).cast(gl.pointer_type(gl.int32), bitcast=True)
        return gl.load(words + scale_offsets)


@gluon.jit
def load_id(table, offset, T: gl.constexpr, PAGE8: gl.constexpr):
    """Page id of the 64 keys whose split64 id stands at byte `offset` of the table row; none past the last is read.

    split64: one scalar load from a constant table. split8: of each lane's key in tile T.
    """
    table_ptr, last_id, lanes = table
    row = table_ptr.cast(gl.pointer_type(gl.int8, const=True), bitcast=True)
    if PAGE8:
        at = gl.minimum((offset * 8 + T * 8 + lanes).to(gl.uint32), last_id.to(gl.uint32))
    else:
        at = gl.minimum(offset.to(gl.uint32), last_id.to(gl.uint32)).to(gl.uint64)
    return gl.load((row + at).cast(gl.pointer_type(gl.uint32, const=True), bitcast=True))


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
def first_page(source, table, PAGE8: gl.constexpr):
    """What `score_page` scores first, and the ids of what it fetches first."""
    page = ()
    following = ()
    for t in gl.static_range(4 if PAGE8 else 1):
        page = page + (load_id(table, 0 * table[1], t, PAGE8),)
        following = following + (load_id(table, 0 * table[1] + 4, t, PAGE8),)
    scales = load_scales(source, page[0], PAGE8)
    if PAGE8:
        scales = (scales,)
        for t in gl.static_range(1, 4):
            scales = scales + (load_scales(source, page[t], PAGE8),)
    hint.sched_barrier()
    keys = ()
    for t in gl.static_range(4):
        keys = keys + (load_tile(source, page[t if PAGE8 else 0], t, PAGE8),)
        hint.sched_barrier()
    return keys, scales, following


@gluon.jit
def score_page(state, next_offset, rows, source, table, sink, HEADS: gl.constexpr, R: gl.constexpr,
               MASKED: gl.constexpr, FAST: gl.constexpr, PAGE8: gl.constexpr, MFMA: gl.constexpr, LANES: gl.constexpr):
    """Score the 64 keys held in `state` for R rows while the next are being fetched; returns the next state.

    What a tile of the next page needs is requested as soon as that tile has met the last row, so a page of loads is
    always in flight and nothing is copied. Scheduling barriers keep that order.
    """
    keys, scales, page, column = state
    q, q_scale, w = rows
    out, stride_out, position, lows, highs = sink
    sums = ()
    fetched = ()
    following = ()
    next_scales = scales
    held = ()
    for t in gl.static_range(4):
        held = held + (scale_of(scales, t, PAGE8),)
    if PAGE8:
        next_scales = ()
    for t in gl.static_range(4):
        for r in gl.static_range(R):
            score = scaled_product(keys[t], held[t], q[r], q_scale[r], HEADS, MFMA)
            hint.sched_barrier()
            if r == R - 1:
                if PAGE8:
                    fetched = fetched + (load_tile(source, page[t], t, PAGE8),)
                    next_scales = next_scales + (load_scales(source, page[t], PAGE8),)
                    following = following + (load_id(table, next_offset, t, PAGE8),)
                else:
                    if t == 0:
                        next_scales = load_scales(source, page[0], PAGE8)
                    fetched = fetched + (load_tile(source, page[0], t, PAGE8),)
                    if t == 0:
                        # After the last wait for the previous id: scalar loads return out of order.
                        following = following + (load_id(table, next_offset, t, PAGE8),)
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
    return fetched, next_scales, following, column + 64


@gluon.jit
def score_pages(first, last, state, rows, source, table, sink, HEADS: gl.constexpr, R: gl.constexpr,
                MASKED: gl.constexpr, FAST: gl.constexpr, PAGE8: gl.constexpr, MFMA: gl.constexpr,
                LANES: gl.constexpr):
    """Score the runs of 64 keys whose split64 ids stand at byte offsets `first` to `last` of the table row."""
    for i in range(first, last, 4):
        state = score_page(state, i + 8, rows, source, table, sink, HEADS, R, MASKED, FAST, PAGE8, MFMA, LANES)
    return state
