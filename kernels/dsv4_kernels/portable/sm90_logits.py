"""Paged logits in plain Triton for NVIDIA's sm90: operands of eight bits, float16 accumulators. Layout split64.

Keys become e5m2 relative to the largest scale of their token, by a byte permute that looks magnitudes up in a table
which already holds the power of two; the head sum is a second product. Errors are those of the `hopper` backend: exact
within 13 octaves of scales in a token until a product or a sum needs more than 11 bits.

What is a layout in `hopper` is here only an order of dimensions, chosen so that Triton's own choice of registers makes
every conversion between a load, the two products and the store an identity. The permute is right only while the four
bytes of a word lie in one thread: `sm90_check` compares with the exact kernel before these may serve.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dsv4_kernels.layout import SPLIT64
from dsv4_kernels.logits_call import LogitsCall

COLUMNS = 128
"""Heads times rows of a program at most."""

REGISTERS = {64: 80, 128: 128}
"""Of a thread, by columns up to which they serve: what leaves PROGRAMS thread blocks resident."""

PROGRAMS = {64: 6, 128: 4}
"""Thread blocks a multiprocessor, by columns."""

# $2: word of 8 nibbles; $6, $10: table of 0 .5 1 1.5 and of 2 3 4 6; $0, $1: words of four e5m2. The gaps are the
# three other elements of a word in inputs that are constant along it.
UNPACK = tl.constexpr("""{
.reg .b32 lo, hi, up, s0, s1, m0, m1;
and.b32 lo, $2, 0x77777777;
shr.u32 hi, lo, 16;
shl.b32 up, $2, 4;
prmt.b32 s0, up, $2, 0x5140;
prmt.b32 s1, up, $2, 0x7362;
prmt.b32 m0, $6, $10, lo;
prmt.b32 m1, $6, $10, hi;
lop3.b32 $0, s0, 0x80808080, m0, 0xEA;
lop3.b32 $1, s1, 0x80808080, m1, 0xEA;
}""")
UNPACK_REGISTERS = tl.constexpr("=r,=r,r,r,r,r,r,r,r,r,r,r,r,r")
# $1: a nibble, and more above it; $2, $3: the table; $0: its e5m2, and more above it.
LOOK_UP = tl.constexpr("""{
.reg .b32 at, magnitude, sign;
and.b32 at, $1, 7;
prmt.b32 magnitude, $2, $3, at;
shl.b32 sign, $1, 4;
lop3.b32 $0, sign, 0x80, magnitude, 0xEA;
}""")
# max(x * 1 - 0, 0) on packed halves.
RELU = tl.constexpr(
    "{ .reg .b32 one, zero; mov.b32 one, 0x3C003C00; mov.b32 zero, 0x80008000; fma.rn.relu.f16x2 $0, $1, one, zero; }"
)


@triton.jit
def e5m2(words, field, ASSEMBLY: tl.constexpr):
    """The low nibbles of words [M, 4, 4] and their high ones, as e5m2 [M, 4, 4, 4]; 0.5 has exponent `field` [M, 4].

    One by one, so that it is right in any layout.
    """
    shift = (tl.arange(0, 4) * 4)[None, None, None, :]
    words, field = words[:, :, :, None], field[:, None, :, None]
    return _e5m2(words >> shift, field, ASSEMBLY), _e5m2(words >> (shift + 16), field, ASSEMBLY)


@triton.jit
def _e5m2(nibble, field, ASSEMBLY: tl.constexpr):
    if ASSEMBLY:
        low, high = field * 0x04040400 + 0x06040000, field * 0x04040404 + 0x0E0C0A08
        code = tl.inline_asm_elementwise(LOOK_UP, "=r,r,r,r", [nibble, low, high], tl.int32, is_pure=True, pack=1)
    else:
        magnitude = nibble & 7
        code = tl.where(magnitude == 0, 0, field * 4 + tl.where(magnitude == 1, 0, 2 * magnitude))
        code += (nibble & 8) * 16
    return code.to(tl.uint8).to(tl.float8e5, bitcast=True)


@triton.jit
def e5m2_by_permute(words, field):
    """The same by byte permutes."""
    low = tl.broadcast_to((field * 0x04040400 + 0x06040000)[:, None, :, None], (64, 4, 4, 4))
    high = tl.broadcast_to((field * 0x04040404 + 0x0E0C0A08)[:, None, :, None], (64, 4, 4, 4))
    words = tl.broadcast_to(words[:, :, :, None], (64, 4, 4, 4))
    return tl.inline_asm_elementwise(
        UNPACK, UNPACK_REGISTERS, [words, low, high], dtype=(tl.float8e5, tl.float8e5), is_pure=True, pack=4
    )


@triton.jit
def dimensions(low, high, M: tl.constexpr):
    """[M, 128] in the order that keys and queries share: [low or high, word, group, byte]."""
    return tl.reshape(tl.permute(tl.join(low, high), (0, 4, 1, 2, 3)), (M, 128))


@triton.jit
def head_weights(weights, norms, column, R: tl.constexpr, HEADS_PADDED: tl.constexpr):
    """float16 [R * HEADS_PADDED, 8], block-diagonal: columns 2 r and 2 r + 1 are row r's weights over its norm, and
    what their rounding lost.
    """
    inverse = (0x7F000000 - norms).to(tl.float32, bitcast=True)
    weights *= tl.reshape(tl.broadcast_to(inverse[:, None], (R, HEADS_PADDED)), (R * HEADS_PADDED,))
    rounded = weights.to(tl.float16)
    lost = (weights - rounded.to(tl.float32)).to(tl.float16)
    c = tl.arange(0, 8)[None, :]
    own = (column // HEADS_PADDED * 2)[:, None]
    return tl.where(c == own, rounded[:, None], tl.where(c == own + 1, lost[:, None], 0.0))


@triton.jit
def load_tile(words_ptr, scale_ptr, page, payload_stride, scale_stride, slot):
    """Words int32 [4 groups, 64, 4] and exponents uint8 [4, 64] of a page's slots."""
    i = tl.arange(0, 4)
    page = page.to(tl.int64)
    words_at = (i * 256)[:, None, None] + (slot * 4)[None, :, None] + i[None, None, :]
    scales_at = (i * 64)[:, None] + (slot % 16 * 4 + slot // 16)[None, :]
    words = tl.load(words_ptr + page * (payload_stride // 4) + words_at)
    return words, tl.load(scale_ptr + page * scale_stride + scales_at)


# A table of any width and any number of rows run the same compilation.
@triton.jit(do_not_specialize=["rows", "bound", "stride_table", "stride_out", "splits"])
def _kernel(
    q_ptr, qs_ptr, payload_ptr, scale_ptr, table_ptr, weights_ptr, seq_ptr, starts_ptr, ends_ptr, out_ptr,
    rows, bound, payload_stride, scale_stride, stride_table, stride_weights, stride_out, weight_scale, splits,
    HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, SCALE_COLUMNS: tl.constexpr, R: tl.constexpr,
    SHARED: tl.constexpr, WINDOWED: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    N: tl.constexpr = R * HEADS_PADDED
    first = (tl.program_id(0) // splits).to(tl.int64) * R
    split = tl.program_id(0) % splits
    # Four, because a thread holds the sums of one of four rows.
    member = tl.arange(0, 4)
    row = first + member
    live = (row < rows) & (member < R)
    end = tl.minimum(tl.load(ends_ptr + row, mask=live, other=0), bound)
    start = tl.load(starts_ptr + row, mask=live, other=0) if WINDOWED else tl.zeros((4,), tl.int32)
    seq = tl.load(seq_ptr + row, mask=live, other=-1) if SHARED else row.to(tl.int32)
    live = live & (start < end)
    # The most pages that a run of these rows can have; with a wide table most programs have none.
    if split >= tl.max(tl.where(live, (end + 63) // 64, 0)) - tl.min(tl.where(live, start // 64, 0x7FFFFFFF)):
        return

    column = tl.arange(0, N)
    head = column % HEADS_PADDED
    q_row = first + column // HEADS_PADDED
    present = (head < HEADS) & (q_row < rows)
    i = tl.arange(0, 4)
    at = qs_ptr + q_row * (64 * SCALE_COLUMNS) + head % 16 * SCALE_COLUMNS + head // 16
    at = at[:, None] + (i * (16 * SCALE_COLUMNS))[None, :]
    exponents = tl.load(at, mask=present[:, None], other=0).to(tl.int32)
    q_top = tl.max(exponents, axis=1)
    at = q_ptr.to(tl.pointer_type(tl.int32)) + q_row * (HEADS * 16) + head * 16
    at = at[:, None, None] + i[None, :, None] + (i * 4)[None, None, :]
    words = tl.load(at, mask=present[:, None, None], other=0)
    q_low, q_high = e5m2(words, tl.maximum(exponents - q_top[:, None] + 14, 0), ASSEMBLY)
    queries = tl.trans(dimensions(q_low, q_high, N))
    w = tl.load(weights_ptr + q_row * stride_weights + head, mask=present, other=0.0).to(tl.float32)
    w *= (q_top << 23).to(tl.float32, bitcast=True)
    norms = tl.max(tl.reshape(tl.abs(w), (R, HEADS_PADDED)), axis=1).to(tl.int32, bitcast=True) & 0x7F800000
    weights = head_weights(w, norms, column, R, HEADS_PADDED)
    factor = tl.zeros((4,), tl.float32)
    for r in tl.static_range(R):
        norm = tl.sum(tl.where(tl.arange(0, R) == r, norms, 0)).to(tl.float32, bitcast=True)
        factor = tl.where(member == r, norm * weight_scale, factor)

    # Token (half, warp, lane) of a tile. The two lowest bits of a lane are swapped, else Triton would see neighbours
    # in memory and give them to one thread.
    n = tl.arange(0, 64)
    slot = n % 2 * 4 + n // 2 % 4 + n // 8 % 2 * 8 + n // 16 % 2 * 32 + n // 32 * 16
    words_ptr = payload_ptr.to(tl.pointer_type(tl.int32))
    for lead in range(0, R):
        # Each run of rows of one sequence is taken once, at its first row.
        lead_seq = tl.sum(tl.where(member == lead, seq, 0))
        before = tl.sum(tl.where(member == lead - 1, seq, 0)) if SHARED else -1
        run = live & (seq == lead_seq) & (member >= lead)
        if (lead == 0 or before != lead_seq) and lead_seq >= 0:
            opened = tl.min(tl.where(run, start, 0x7FFFFFFF)) // 64
            tiles = tl.maximum((tl.max(tl.where(run, end, 0)) + 63) // 64 - opened, 0)
            share = (tiles + splits - 1) // splits
            tile = opened + split * share
            stop = tl.minimum(tile + share, opened + tiles)
            table_row = table_ptr + lead_seq.to(tl.int64) * stride_table
            if tile < stop:
                page = tl.load(table_row + tile)
                x, e = load_tile(words_ptr, scale_ptr, page, payload_stride, scale_stride, slot)
                page = tl.load(table_row + tl.minimum(tile + 1, stop - 1))
                for t in range(tile, stop):
                    e = e.to(tl.int32)
                    top = tl.max(e, axis=0)
                    field = tl.maximum(e - top[None, :] + 14, 0)
                    # (half, warp, lane) to the rows of the first product: (warp, half, lane).
                    field = tl.reshape(tl.permute(tl.reshape(field, (4, 2, 4, 8)), (2, 1, 3, 0)), (64, 4))
                    x = tl.reshape(tl.permute(tl.reshape(x, (4, 2, 4, 8, 4)), (2, 1, 3, 4, 0)), (64, 4, 4))
                    if ASSEMBLY:
                        low, high = e5m2_by_permute(x, field)
                    else:
                        low, high = e5m2(x, field, False)
                    x, e = load_tile(words_ptr, scale_ptr, page, payload_stride, scale_stride, slot)
                    page = tl.load(table_row + tl.minimum(t + 2, stop - 1))
                    s = tl.dot(dimensions(low, high, 64), queries, out_dtype=tl.float16)
                    if ASSEMBLY:
                        s = tl.inline_asm_elementwise(RELU, "=r,r", [s], dtype=tl.float16, is_pure=True, pack=2)
                    else:
                        s = tl.maximum(s, 0.0).to(tl.float16)
                    u = tl.sum(tl.reshape(tl.dot(s, weights), (64, 4, 2)), axis=2)
                    u = tl.reshape(tl.permute(tl.reshape(u, (4, 2, 8, 4)), (3, 1, 0, 2)), (4, 64))
                    u = u * factor[:, None] * (top << 23).to(tl.float32, bitcast=True)[None, :]
                    position = t * 64 + slot[None, :]
                    seen = run[:, None] & (position < end[:, None])
                    if WINDOWED:
                        seen = seen & (position >= start[:, None])
                    tl.store(out_ptr + (row * stride_out)[:, None] + position, u, mask=seen)


def covers(call: LogitsCall) -> bool:
    """Whether these kernels are written for the call's layout, table and heads."""
    return call.pool.spec.layout == SPLIT64 and not call.gathers and call.heads <= COLUMNS


def launch(call: LogitsCall, out: Tensor, processors: int, *, assembly: bool = True) -> None:
    """Score into `out` float32 [T, n]. Without `assembly` none is used, for Triton's interpreter."""
    payload, scale = call.packed("portable")
    rows, heads = call.rows, call.heads
    padded = max(8, triton.next_power_of_2(heads))
    group = 1 if call.row_to_seq is None else max(1, min(4, COLUMNS // padded))
    size = min(c for c in PROGRAMS if c >= group * padded)
    blocks = triton.cdiv(rows, group)
    # A length on the GPU cannot be checked before.
    bound = min(call.max_seq_len, call.page_table.shape[1] * SPLIT64.page_slots)
    # The share of a program follows a row's own length, so its time does not depend on the width of the output.
    splits = max(1, min(PROGRAMS[size] * processors // blocks, triton.cdiv(call.max_seq_len, 64)))
    weights, pool = call.float_weights, call.pool
    _kernel[(blocks * splits,)](
        payload, scale, pool.payload, pool.scale, call.page_table, weights,
        call.row_to_seq if call.row_to_seq is not None else call.lengths,
        call.starts if call.starts is not None else call.lengths, call.lengths, out,
        rows, bound, pool.payload_stride, pool.scale_stride,
        call.page_table.stride(0), weights.stride(0), out.stride(0), call.weight_scale, splits,
        HEADS=heads, HEADS_PADDED=padded, SCALE_COLUMNS=scale.shape[-1], R=group,
        SHARED=call.row_to_seq is not None, WINDOWED=call.starts is not None, ASSEMBLY=assembly,
        num_warps=4, num_stages=1, enable_fp_fusion=True, maxnreg=REGISTERS[size],
    )  # fmt: skip
