"""64 keys: loads straight into matrix operands, scores of one to four rows.

Every layout keeps the 16 bytes of a key's group together, which is what a lane holds of the matrix operand. Where an
entry of the table names a page of 64 or 128 keys it is one scalar, and a lane's four scales are one word (split64) or
four bytes (records). Where it names 8 keys, a page of split8 or a candidate block of a record's page, each lane has an
id of its own.
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
def block_of(entry, ORDER: gl.constexpr):
    """Page of an entry and, where it names a block of keys inside the page, the first slot of that block."""
    if ORDER.gathers:
        count: gl.constexpr = ORDER.of.page_slots // ORDER.entry
        return entry // count, entry % count * ORDER.entry
    else:
        return entry, 0


@gluon.jit
def payload_of(slot, ORDER: gl.constexpr):
    """First byte of a slot in its page."""
    run: gl.constexpr = ORDER.of.payload_run
    return slot // run * ORDER.of.payload.run_stride + slot % run * ORDER.of.payload.slot_stride


@gluon.jit
def scales_of(slot, ORDER: gl.constexpr):
    """The scale of group 0 of a slot, from the first scale of its page."""
    run: gl.constexpr = ORDER.of.scale_run
    return slot // run * ORDER.of.scale.run_stride + slot % run * ORDER.of.scale.slot_stride


@gluon.jit
def load_tile(source, page, T: gl.constexpr, ORDER: gl.constexpr):
    """Tile T (16 keys): 16 bytes a lane, the B operand as the matrix instruction wants it."""
    payload_ptr, _, key_offsets, _, stride, _ = source
    if ORDER.own_ids:
        id, first = block_of(page[T], ORDER)
        if ORDER.gathers:
            key_offsets = key_offsets + payload_of(first, ORDER).to(gl.int32)[None, :]
        return gl.load(page_base(payload_ptr, id, stride)[None, :] + key_offsets)
    else:
        if ORDER.two_halves:
            payload_ptr = payload_ptr + page[1] * ORDER.payload_of_slot(64)
        return gl.load(page_base(payload_ptr, page[0], stride) + ORDER.payload_of_slot(16 * T) + key_offsets)


@gluon.jit
def load_scales(source, page, T: gl.constexpr, ORDER: gl.constexpr):
    """A byte a lane of tile T; or a word, whose byte t belongs to tile t."""
    _, scale_ptr, _, scale_offsets, _, stride = source
    if ORDER.own_ids:
        # The same lanes hold a key's scales and its bytes: nothing moves.
        entry = gl.convert_layout(page[T], gl.SliceLayout(1, scale_offsets.type.layout), assert_trivial=True)
        id, first = block_of(entry, ORDER)
        if ORDER.gathers:
            scale_offsets = scale_offsets + scales_of(first, ORDER).to(gl.int32)[:, None]
        return gl.load(page_base(scale_ptr, id, stride)[:, None] + scale_offsets)
    elif ORDER.word_scales:
        words = page_base(scale_ptr, page[0], stride).cast(gl.pointer_type(gl.int32), bitcast=True)
        return gl.load(words + scale_offsets)
    else:
        if ORDER.two_halves:
            scale_ptr = scale_ptr + page[1] * ORDER.scale_of_slot(64)
        return gl.load(page_base(scale_ptr, page[0], stride) + ORDER.scale_of_slot(16 * T) + scale_offsets)


@gluon.jit
def load_id(table, offset, T: gl.constexpr, ORDER: gl.constexpr):
    """What names the keys of the 64 that stand at `offset`, 4 times their number in this wave: a tuple.

    Whole pages: the page id by one scalar load from a constant table, and which half of 128 slots. Own ids: of each
    lane's key in tile T. None past the last is read.
    """
    table_ptr, last_id, lanes = table
    row = table_ptr.cast(gl.pointer_type(gl.int8, const=True), bitcast=True)
    if ORDER.own_ids:
        at = gl.minimum((offset * 8 + T * 8 + lanes).to(gl.uint32), last_id.to(gl.uint32))
        return (gl.load((row + at).cast(gl.pointer_type(gl.uint32, const=True), bitcast=True)),)
    elif ORDER.two_halves:
        at = gl.minimum((offset >> 3 << 2).to(gl.uint32), last_id.to(gl.uint32)).to(gl.uint64)
        return (gl.load((row + at).cast(gl.pointer_type(gl.uint32, const=True), bitcast=True)), (offset >> 2) & 1)
    else:
        at = gl.minimum(offset.to(gl.uint32), last_id.to(gl.uint32)).to(gl.uint64)
        return (gl.load((row + at).cast(gl.pointer_type(gl.uint32, const=True), bitcast=True)),)


@gluon.jit
def scale_of(scales, T: gl.constexpr, ORDER: gl.constexpr):
    if ORDER.word_scales:
        return ((scales[0] >> (8 * T)) & 255).to(gl.uint8)
    else:
        return scales[T]


@gluon.jit
def scaled_product(keys, key_scale, q, q_scale, HEADS: gl.constexpr, MFMA: gl.constexpr):
    """[HEADS, 16] scores of 16 keys by v_mfma_scale_f32_16x16x128_f8f6f4."""
    zero = gl.zeros([HEADS, 16], gl.float32, MFMA)
    return gl.amd.cdna4.mfma_scaled(
        a=q, a_scale=q_scale, a_format="e2m1", b=keys, b_scale=key_scale, b_format="e2m1", acc=zero
    )


@gluon.jit
def first_page(source, table, ORDER: gl.constexpr):
    """What `score_page` scores first, and the ids of what it fetches first."""
    page = ()
    following = ()
    for t in gl.static_range(4 if ORDER.own_ids else 1):
        page = page + load_id(table, 0 * table[1], t, ORDER)
        following = following + load_id(table, 0 * table[1] + 4, t, ORDER)
    scales = ()
    for t in gl.static_range(1 if ORDER.word_scales else 4):
        scales = scales + (load_scales(source, page, t, ORDER),)
    hint.sched_barrier()
    keys = ()
    for t in gl.static_range(4):
        keys = keys + (load_tile(source, page, t, ORDER),)
        hint.sched_barrier()
    return keys, scales, following


@gluon.jit
def score_page(state, next_offset, rows, source, table, sink, HEADS: gl.constexpr, R: gl.constexpr,
               MASKED: gl.constexpr, FAST: gl.constexpr, ORDER: gl.constexpr, MFMA: gl.constexpr, LANES: gl.constexpr):
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
    next_scales = ()
    held = ()
    for t in gl.static_range(4):
        held = held + (scale_of(scales, t, ORDER),)
    for t in gl.static_range(4):
        for r in gl.static_range(R):
            score = scaled_product(keys[t], held[t], q[r], q_scale[r], HEADS, MFMA)
            hint.sched_barrier()
            if r == R - 1:
                if ORDER.own_ids:
                    fetched = fetched + (load_tile(source, page, t, ORDER),)
                    next_scales = next_scales + (load_scales(source, page, t, ORDER),)
                    following = following + load_id(table, next_offset, t, ORDER)
                else:
                    if t == 0 or not ORDER.word_scales:
                        next_scales = next_scales + (load_scales(source, page, t, ORDER),)
                    fetched = fetched + (load_tile(source, page, t, ORDER),)
                    if t == 0:
                        # After the last wait for the previous id: scalar loads return out of order.
                        following = following + load_id(table, next_offset, t, ORDER)
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
                MASKED: gl.constexpr, FAST: gl.constexpr, ORDER: gl.constexpr, MFMA: gl.constexpr,
                LANES: gl.constexpr):
    """Score the runs of 64 keys whose split64 ids stand at byte offsets `first` to `last` of the table row."""
    for i in range(first, last, 4):
        state = score_page(state, i + 8, rows, source, table, sink, HEADS, R, MASKED, FAST, ORDER, MFMA, LANES)
    return state
