"""From a tile of scores to one number per key: relu, head weights, sum over heads.

A lane of a 16x16 matrix instruction holds, of one key, four neighbouring heads of each 16-head tile. `fast` takes the
relu from the clamp bit of a packed multiply: clamp(x * 2**-64) is relu(x) * 2**-64 for |x| < 2**64, and the weights
carry 2**64. That is one packed instruction for two scores and one more to weigh them. `plain` leaves the relu to the
compiler.
"""

# Device code: its types are the compiler's, its tuples grow by addition only, and both arms of a branch must return.
# mypy: ignore-errors
# ruff: noqa: RET505
# fmt: off

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

TWO_64 = gl.constexpr(18446744073709551616.0)
TWO_MINUS_64 = gl.constexpr(0x3F8000001F800000)
"""The float 2**-64 in the low half of a register pair, taken for both products by `op_sel_hi:[1,0]`. The high half is
another number (1.0), because the compiler copies a pair of equal halves anew in every iteration."""


@gluon.constexpr_function
def clamped_sum_assembly(outputs, inputs):
    """`outputs`: an accumulator pair and two temporaries; `inputs`: score pairs, weight pairs, the pair of 2**-64.

    LLVM's hazard recogniser does not look into inline assembly: a 4-pass matrix result needs the 8 wait states of
    `s_nop 7`. The multiply of pair i + 1 stands before the accumulation of pair i, so that no packed result is read at
    once.
    """
    accumulator, first, second = (o[0] for o in outputs)
    scores, weights, tiny = inputs[0], inputs[1], inputs[2][0]
    temporary = (first, second)
    lines = ["s_nop 7", f"v_pk_mul_f32 {first}, {scores[0]}, {tiny} op_sel_hi:[1,0] clamp"]
    for i, weight in enumerate(weights):
        if i + 1 < len(scores):
            lines.append(f"v_pk_mul_f32 {temporary[(i + 1) % 2]}, {scores[i + 1]}, {tiny} op_sel_hi:[1,0] clamp")
        product = f"{temporary[i % 2]}, {weight}"
        if i == 0:
            lines.append(f"v_pk_mul_f32 {accumulator}, {product}")
        else:
            lines.append(f"v_pk_fma_f32 {accumulator}, {product}, {accumulator}")
    lines.append(f"v_pk_add_f32 {accumulator}, {accumulator}, {accumulator} op_sel:[0,1] op_sel_hi:[0,1]")
    return "\n".join(lines)


@gluon.constexpr_function
def clamped_sum_constraints(pairs):
    return ",".join(["=&v"] * 3 + ["v"] * (2 * pairs) + ["s"])


@gluon.constexpr_function
def transpose_reduce_assembly(outputs, inputs):
    """Four partial sums a lane (one per tile of 16 keys) to one a lane (one per key): lane group g keeps tile g."""
    a, b, c, d = (o[0] for o in outputs)
    return "\n".join(
        [
            "s_nop 1",
            f"v_permlane32_swap_b32 {a}, {c}",
            f"v_permlane32_swap_b32 {b}, {d}",
            f"v_add_f32 {a}, {a}, {c}",
            f"v_add_f32 {b}, {b}, {d}",
            "s_nop 1",
            f"v_permlane16_swap_b32 {a}, {b}",
            f"v_add_f32 {a}, {a}, {b}",
        ]
    )


@gluon.jit
def register_pairs(x, HEADS: gl.constexpr):
    """[HEADS, 16] float32 as 64-bit register pairs: what the packed instructions take."""
    low, high = gl.split(gl.permute(gl.reshape(x, [HEADS // 2, 2, 16]), [0, 2, 1]))
    low = low.to(gl.uint32, bitcast=True).to(gl.uint64)
    return low | (high.to(gl.uint32, bitcast=True).to(gl.uint64) << 32)


@gluon.jit
def registers(x, COUNT: gl.constexpr):
    """[4, 16, COUNT] to a tuple of COUNT tensors [4, 16]: the registers of each lane."""
    if COUNT == 1:
        return (gl.reshape(x, [4, 16]),)
    else:
        low, high = gl.split(gl.reshape(x, [4, 16, COUNT // 2, 2]))
        return registers(low, COUNT // 2) + registers(high, COUNT // 2)


@gluon.jit
def lane_major(x, HEADS: gl.constexpr):
    """[HEADS, 16] as [4, 16, HEADS / 4]: lane group, key, register. Moves nothing."""
    return gl.reshape(gl.permute(gl.reshape(x, [HEADS // 16, 4, 4, 16]), [1, 3, 0, 2]), [4, 16, HEADS // 4])


@gluon.jit
def prepare_weights(w, HEADS: gl.constexpr, FAST: gl.constexpr):
    """Head weights [HEADS, 16] in the form `head_sum` takes."""
    if FAST:
        return register_pairs(w * TWO_64, HEADS)
    else:
        return w


@gluon.jit
def head_sum(score, w, HEADS: gl.constexpr, FAST: gl.constexpr, LANES: gl.constexpr):
    """Partial sums [64] over the heads that a lane holds of `score` [HEADS, 16]."""
    if FAST:
        pair: gl.constexpr = gl.distributed_type(gl.int64, [64], LANES)
        total, _, _ = gl.inline_asm(
            clamped_sum_assembly,
            clamped_sum_constraints(HEADS // 8),
            [register_pairs(score, HEADS), w, TWO_MINUS_64],
            (pair, pair, pair),
            is_pure=True,
        )
        return (total & 0xFFFFFFFF).to(gl.uint32).to(gl.float32, bitcast=True)
    else:
        scores = registers(lane_major(score, HEADS), HEADS // 4)
        weights = registers(lane_major(w, HEADS), HEADS // 4)
        # Two chains over registers that are neighbours: the compiler pairs them into packed instructions.
        even = gl.maximum(scores[0], 0.0, propagate_nan=tl.PropagateNan.ALL) * weights[0]
        odd = gl.maximum(scores[HEADS // 8], 0.0, propagate_nan=tl.PropagateNan.ALL) * weights[HEADS // 8]
        for i in gl.static_range(1, HEADS // 8):
            even = gl.fma(gl.maximum(scores[i], 0.0, propagate_nan=tl.PropagateNan.ALL), weights[i], even)
            relu = gl.maximum(scores[HEADS // 8 + i], 0.0, propagate_nan=tl.PropagateNan.ALL)
            odd = gl.fma(relu, weights[HEADS // 8 + i], odd)
        total = even + odd
        return gl.convert_layout(gl.reshape(total, [64]), LANES, assert_trivial=True)


@gluon.jit
def transpose_reduce(a, b, c, d, LANES: gl.constexpr):
    """[64] sums over all heads of the 64 keys of a page, from the partial sums of its four tiles."""
    lane: gl.constexpr = gl.distributed_type(gl.float32, [64], LANES)
    total, _, _, _ = gl.inline_asm(
        transpose_reduce_assembly, "=v,=v,=v,=v,0,1,2,3", [a, b, c, d], (lane, lane, lane, lane), is_pure=True
    )
    return total
