"""FP4 tiles for Hopper's tensor cores: where the bytes of a page go in registers, and nibbles to e5m2.

A thread loads the 16 bytes of one (token, group of 32) straight from the page into operand A; keys never see shared
memory. Row m of the 64-row operand is warp m // 16, half m // 8 % 2, lane group m % 8. Loads work on one half at a
time, as [32, group, word, byte] with first index r = 8 * warp + lane group, which holds slot r % 16 + 32 * (r // 16) of
the page, and the slot 16 further on in the other half: so the scale bytes of the two halves are neighbours.

The order of the 128 dimensions inside the product is free as long as keys and queries agree: [d, word, group, byte],
where d says whether a byte came from the low or the high four nibbles of a word.
"""

# Device code: its types are the compiler's.
# mypy: ignore-errors

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_HALF = gl.DistributedLinearLayout(
    reg_bases=[[0, 0, 0, 1], [0, 0, 0, 2], [0, 0, 1, 0], [0, 0, 2, 0]],
    lane_bases=[[0, 1, 0, 0], [0, 2, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [4, 0, 0, 0]],
    warp_bases=[[8, 0, 0, 0], [16, 0, 0, 0]],
    block_bases=[],
    shape=[32, 4, 4, 4],
)
_WORDS = gl.SliceLayout(3, _HALF)
_GROUPS = gl.SliceLayout(2, _WORDS)
HALF = gl.constexpr(_HALF)
WORDS = gl.constexpr(_WORDS)
GROUPS = gl.constexpr(_GROUPS)
ROW = gl.constexpr(gl.SliceLayout(1, _GROUPS))
COLUMN = gl.constexpr(gl.SliceLayout(0, _GROUPS))
WORD = gl.constexpr(gl.SliceLayout(0, gl.SliceLayout(0, _WORDS)))

# A byte permute looks the 3-bit magnitude up in a table of two registers that already contains the group's power of
# two. $2: word of 8 nibbles; $6, $10: table of 0 .5 1 1.5 and of 2 3 4 6; $0, $1: words of four e5m2. With pack=4 the
# four byte elements of an output word are the innermost dimension; the inputs are constant along it, hence the gaps.
UNPACK = gl.constexpr("""{
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
UNPACK_REGISTERS = gl.constexpr("=r,=r,r,r,r,r,r,r,r,r,r,r,r,r")
# Two bytes to the two halves of a word, and the larger of two such words half by half.
SPREAD = gl.constexpr("prmt.b32 $0, $1, 0, 0x4140;")
LARGER = gl.constexpr("max.u16x2 $0, $1, $2;")
WARP_BARRIER = gl.constexpr("bar.warp.sync 0xffffffff; mov.b32 $0, $1;")


@gluon.constexpr_function
def product_layout(columns):
    """Accumulators of a [64, columns] product."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, columns, 32])


@gluon.jit
def tile_rows():
    """int32 [32, 1]: r."""
    return gl.expand_dims(gl.arange(0, 32, ROW), 1)


@gluon.jit
def tile_groups():
    """int32 [1, 4]: the group of 32; in results of the head sum the same index is the row of a row group."""
    return gl.expand_dims(gl.arange(0, 4, COLUMN), 0)


@gluon.jit
def tile_words():
    """int32 [1, 1, 4]: the word inside a group's 16 bytes."""
    return gl.expand_dims(gl.expand_dims(gl.arange(0, 4, WORD), 0), 0)


@gluon.jit
def key_offsets():
    """In a page of split64: words [32, 4, 4] of the lower half; both halves' scales [32, 4] in units of 16 bits."""
    r, c = tile_rows(), tile_groups()
    slot = r % 16 + 32 * (r // 16)
    return gl.expand_dims(slot * 4 + c * 256, 2) + tile_words(), (r % 16) * 2 + r // 16 + c * 32


@gluon.jit
def load_page(keys_ptr, scales_ptr, page, words_at, scales_at, KEYS_STRIDE: gl.constexpr, SCALES_STRIDE: gl.constexpr):
    """Words of both halves and scales of a page; strides in words and in units of 16 bits."""
    page = page.to(gl.int64)
    words = keys_ptr + page * KEYS_STRIDE + words_at
    low = gl.load(words, eviction_policy="evict_first")
    high = gl.load(words + 64, eviction_policy="evict_first")
    return low, high, gl.load(scales_ptr + page * SCALES_STRIDE + scales_at)


@gluon.jit
def pin():
    """Keeps prefetches where they stand: ptxas would sink them to the end of the loop body."""
    zero = gl.full([1, 1, 1], 0, gl.int32, WORDS)
    gl.inline_asm_elementwise(WARP_BARRIER, "=r,r", [zero], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def unpack_half(words, field):
    """Words [32, 4, 4] to e5m2 [32, 4, 4, 4] of low and of high nibbles; 0.5 gets exponent `field` [32, 4]."""
    low = gl.expand_dims(gl.expand_dims(field * 0x04040400 + 0x06040000, 2), 3)
    high = gl.expand_dims(gl.expand_dims(field * 0x04040404 + 0x0E0C0A08, 2), 3)
    words = gl.broadcast(gl.expand_dims(words, 3), gl.full([32, 4, 4, 4], 0, gl.int32, HALF))[0]
    return gl.inline_asm_elementwise(
        UNPACK, UNPACK_REGISTERS, [words, low, high], dtype=(gl.float8e5, gl.float8e5), is_pure=True, pack=4
    )


@gluon.jit
def larger(a, b):
    """The larger of each half of two words."""
    return gl.inline_asm_elementwise(LARGER, "=r,r,r", [a, b], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def unpack_page(low_words, high_words, scales, N: gl.constexpr):
    """A loaded page to operand A [64, 128] of a product with N columns, relative to the largest scale of each token,
    exact down to 13 octaves below it; and the exponents of those scales [32], of the lower slots in the lower 16 bits.
    """
    both = gl.inline_asm_elementwise(SPREAD, "=r,r", [scales.to(gl.int32)], dtype=gl.int32, is_pure=True, pack=1)
    top = gl.reduce(both, 1, larger)
    tops = gl.expand_dims(top, 1)
    # max(exponent - top + 14, 0), half by half.
    fields = larger(both + 0x000E000E, gl.broadcast(tops, both)[0]) - tops
    a0, a1 = unpack_half(low_words, fields & 0xFFFF)
    b0, b1 = unpack_half(high_words, fields >> 16)
    a = gl.join(gl.join(a0, b0), gl.join(a1, b1))
    a = a.reshape([4, 8, 4, 4, 4, 2, 2]).permute([0, 5, 1, 6, 3, 2, 4]).reshape([64, 128])
    # Free: every register is where the operand wants it.
    return gl.convert_layout(a, gl.DotOperandLayout(0, product_layout(N), 4)), top


@gluon.jit
def unpack_heads(query_row, scale_row, head):
    """32 heads of a query row to e5m2 [32, 128]; `head` int32 [32, 1]. The exponent maxima go into the head weights."""
    c = tile_groups()
    words = gl.load(query_row + gl.expand_dims(head * 16 + c * 4, 2) + tile_words())
    exponents = gl.load(scale_row + c * 64 + (head % 16) * 4 + head // 16).to(gl.int32)
    field = gl.maximum(exponents - gl.expand_dims(gl.max(exponents, axis=1), 1) + 14, 0)
    q0, q1 = unpack_half(words, field)
    return gl.join(q0, q1).permute([0, 4, 2, 1, 3]).reshape([32, 128])
