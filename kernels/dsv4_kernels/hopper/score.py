"""From operands to logits: the product, relu, and the head sum as a second product.

Accumulators are float16. Every term of a product is a small integer times a power of two and the sum is at most 4608,
so this is exact for all but near-parallel vectors, where it rounds to 11 bits. The second product has the head weights
as its operand B, two columns a row: the float16 rounding of a weight and what that rounding lost, so that float32
weights keep 22 bits. Weights are normalised by a power of two.
"""

# Device code: its types are the compiler's.
# mypy: ignore-errors

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from dsv4_kernels.hopper.tile import GROUPS, product_layout, tile_groups, tile_rows, unpack_heads

# max(x * 1 - 0, 0) on packed halves.
RELU = gl.constexpr(
    "{ .reg .b32 one, zero; mov.b32 one, 0x3C003C00; mov.b32 zero, 0x80008000; fma.rn.relu.f16x2 $0, $1, one, zero; }"
)
HEAD_SUM = gl.constexpr(gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 16]))
WEIGHTS = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))
QUERY_MEMORY = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2))


@gluon.constexpr_function
def weight_memory(columns):
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, columns * 2), element_bitwidth=16, rank=2)


@gluon.jit
def weight_columns(weights_row, scale_row, column, HEADS: gl.constexpr):
    """float16 [8, HEADS], zero but for columns `column` and `column + 1`, and the power of two it is relative to."""
    h = gl.arange(0, HEADS, gl.SliceLayout(0, WEIGHTS))
    q = scale_row + ((h % 16) * 4 + h // 16)
    top = gl.maximum(gl.maximum(gl.load(q), gl.load(q + 64)), gl.maximum(gl.load(q + 128), gl.load(q + 192)))
    w = gl.load(weights_row + h).to(gl.float32) * (top.to(gl.int32) << 23).to(gl.float32, bitcast=True)
    norm = gl.max(gl.abs(w), axis=0).to(gl.int32, bitcast=True) & 0x7F800000
    w = w * (0x7F000000 - norm).to(gl.float32, bitcast=True)
    rounded = w.to(gl.float16).to(gl.float32)
    c = gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(1, WEIGHTS)), 1)
    lost = gl.where(c == column + 1, gl.expand_dims(w - rounded, 0), 0.0)
    tile = gl.where(c == column, gl.expand_dims(rounded, 0), lost)
    return tile.to(gl.float16), norm.to(gl.float32, bitcast=True)


@gluon.jit
def stage_row(
    query_memory,
    weight_memory,
    query_row,
    scale_row,
    weights_row,
    member: gl.constexpr,
    HEADS: gl.constexpr,
):
    """Put a row's queries and head weights, the `member`-th of its group, into shared memory; returns its factor."""
    for part in gl.static_range(HEADS // 32):
        q = unpack_heads(query_row, scale_row, tile_rows() + part * 32)
        query_memory.slice(member * HEADS + part * 32, 32, 0).store(q)
    tile, norm = weight_columns(weights_row, scale_row, 2 * member, HEADS)
    weight_memory.slice(member * HEADS, HEADS, 1).store(tile)
    return norm


@gluon.jit
def score(a, queries, weights, N: gl.constexpr):
    """Operand A [64, 128], queries [128, N], weights [N, 8] -> float32 [64, 8]."""
    zero = gl.full([64, N], 0.0, gl.float16, product_layout(N))
    s = warpgroup_mma_wait(0, deps=[warpgroup_mma(a, queries, zero, use_acc=False, is_async=True)])
    s = gl.inline_asm_elementwise(RELU, "=r,r", [s], dtype=gl.float16, is_pure=True, pack=2)
    s = gl.convert_layout(s, gl.DotOperandLayout(0, HEAD_SUM, 2))
    zero = gl.full([64, 8], 0.0, gl.float32, HEAD_SUM)
    return warpgroup_mma_wait(0, deps=[warpgroup_mma(s, weights, zero, use_acc=False, is_async=True)])


@gluon.jit
def power(exponent):
    """float32 [32, 1]: 2 ** (exponent - 127) of the lower 8 bits."""
    return gl.expand_dims((exponent << 23).to(gl.float32, bitcast=True), 1)


@gluon.jit
def store_page(
    u, factor, top, page_ptr, out_stride, start, end, ROWS: gl.constexpr, WINDOWED: gl.constexpr
):  # fmt: skip
    """Sums `u` [64, 8] to the logits of a page at `page_ptr`, in ROWS rows, for slots from `start` and below `end`.

    `top` as of `unpack_page`; `factor`, `start` and `end` are scalars, or [1, 4] by row.
    """
    rounded, lost = gl.split(u.reshape([64, 4, 2]))
    low, high = gl.split((rounded + lost).reshape([4, 2, 8, 4]).permute([0, 2, 3, 1]).reshape([32, 4, 2]))
    r, row = tile_rows(), tile_groups()
    slot = r % 16 + 32 * (r // 16)
    at = page_ptr + slot + row * 0
    if ROWS > 1:
        at = at + row.to(gl.int64) * out_stride
    seen_low = (row < ROWS) & (slot < end)
    seen_high = (row < ROWS) & (slot + 16 < end)
    if WINDOWED:
        seen_low = seen_low & (slot >= start)
        seen_high = seen_high & (slot + 16 >= start)
    gl.store(at, gl.convert_layout(low, GROUPS) * factor * power(top), mask=seen_low)
    gl.store(at + 16, gl.convert_layout(high, GROUPS) * factor * power(top >> 16), mask=seen_high)
