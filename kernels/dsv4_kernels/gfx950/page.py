"""One page of 64 keys of the split64 layout: loads straight into matrix operands, scores of one to four rows."""

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
def load_tile(payload_ptr, page, T: gl.constexpr, offsets, stride, DENSE: gl.constexpr):
    """Tile T (16 keys) of a page: 16 bytes a lane, the B operand as the matrix instruction wants it."""
    if DENSE:
        base = payload_ptr + page * 4096
    else:
        # In units of 16 bytes, so that the compiler knows a lane's 16 bytes to be aligned.
        base = payload_ptr + page * stride * 16
    return gl.load(base + T * 256 + offsets)


@gluon.jit
def load_scales(scale_words_ptr, page, offsets, stride, DENSE: gl.constexpr):
    """One 32-bit word a lane: byte t is the scale of the lane's key of tile t."""
    if DENSE:
        return gl.load(scale_words_ptr + page * 64 + offsets)
    else:
        return gl.load(scale_words_ptr + page * stride + offsets)


@gluon.jit
def load_page_id(table_bytes_ptr, offset):
    """Page id at a byte offset of a constant table: a scalar load."""
    word = (table_bytes_ptr + offset.to(gl.uint64)).cast(gl.pointer_type(gl.int32, const=True), bitcast=True)
    return gl.load(word)


@gluon.jit
def scale_byte(words, T: gl.constexpr):
    return ((words >> (8 * T)) & 255).to(gl.uint8)


@gluon.jit
def scaled_product(keys, key_scale, q, q_scale, HEADS: gl.constexpr, MFMA: gl.constexpr):
    """[HEADS, 16] scores of 16 keys by v_mfma_scale_f32_16x16x128_f8f6f4."""
    zero = gl.zeros([HEADS, 16], gl.float32, MFMA)
    return gl.amd.cdna4.mfma_scaled(
        a=q, a_scale=q_scale, a_format="e2m1", b=keys, b_scale=key_scale, b_format="e2m1", acc=zero
    )


@gluon.jit
def score_page(state, next_id_offset, rows, pool, table_bytes_ptr, sink, HEADS: gl.constexpr, R: gl.constexpr,
               MASKED: gl.constexpr, FAST: gl.constexpr, DENSE: gl.constexpr, MFMA: gl.constexpr, LANES: gl.constexpr):
    """Score the page held in `state` for R rows while the next page is being fetched; returns the next state.

    A tile of the next page is requested as soon as that tile has met the last row, so a page of loads is always in
    flight. Scheduling barriers keep that order.
    """
    keys, scales, page, column = state
    q, q_scale, w = rows
    payload_ptr, scale_words_ptr, key_offsets, scale_offsets, payload_stride, scale_stride = pool
    out, stride_out, position, lows, highs = sink
    sums = ()
    fetched = ()
    following = page
    page = page.to(gl.int64)
    bytes_ = (scale_byte(scales, 0), scale_byte(scales, 1), scale_byte(scales, 2), scale_byte(scales, 3))
    for t in gl.static_range(4):
        for r in gl.static_range(R):
            score = scaled_product(keys[t], bytes_[t], q[r], q_scale[r], HEADS, MFMA)
            hint.sched_barrier()
            if r == R - 1:
                if t == 0:
                    scales = load_scales(scale_words_ptr, page, scale_offsets, scale_stride, DENSE)
                fetched = fetched + (load_tile(payload_ptr, page, t, key_offsets, payload_stride, DENSE),)
                if t == 0:
                    # After the last wait for the previous id: scalar loads return out of order.
                    following = load_page_id(table_bytes_ptr, next_id_offset)
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
def score_pages(first, last, last_id, state, rows, pool, table_bytes_ptr, sink, HEADS: gl.constexpr, R: gl.constexpr,
                MASKED: gl.constexpr, FAST: gl.constexpr, DENSE: gl.constexpr, MFMA: gl.constexpr,
                LANES: gl.constexpr):
    """Score pages whose ids stand at byte offsets `first`..`last` of the table; no id past `last_id` is read."""
    for i in range(first, last, 4):
        following = gl.minimum((i + 8).to(gl.uint32), last_id)
        state = score_page(state, following, rows, pool, table_bytes_ptr, sink,
                           HEADS, R, MASKED, FAST, DENSE, MFMA, LANES)
    return state
