"""Conversions of several values at once to e4m3 and e2m1 on NVIDIA's devices from sm89 on."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

INFINITY = tl.constexpr(0x7F800000)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def bfloat16_pairs(even, odd):
    """int32 words of two bfloat16, the even one low."""
    return tl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [even, odd], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def four_e4m3(e0, o0, e1, o1, keep):
    """int32 words of four codes, or 0 where `keep` is 0 and not -1."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b16 a, b;
        .reg .b32 c;
        cvt.rn.satfinite.e4m3x2.f32 a, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 b, $4, $3;
        mov.b32 c, {a, b};
        and.b32 $0, c, $5;
        }
        """,
        "=r,f,f,f,f,r",
        [e0, o0, e1, o1, keep],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def rounded_to_e2m1(x, scale64, inverse):
    """x / scale / 64 rounded to e2m1 / 64 with x's sign, where scale64 is 64 scales and inverse nearly its reciprocal.

    A threshold of e2m1 times a scale has 7 significant bits, so no other float32 comes nearer to it than 2^-28 beyond
    what decides how a quotient rounds: a reciprocal with one correction, right to 2^-40, gives the division's codes.
    """
    guess = x * inverse
    a = tl.minimum(tl.abs(tl.fma(tl.fma(-guess, scale64, x), inverse, guess)), 0.09375)
    power = tl.maximum(a, 0.015625).to(tl.int32, bitcast=True) & INFINITY
    power = power.to(tl.float32, bitcast=True)
    # Beside 2^22 times the power of two at or below `a` the last place is the distance of codes there.
    rounded = tl.fma(power, -4194304.0, tl.fma(power, 4194304.0, a)).to(tl.int32, bitcast=True)
    return ((rounded & MAGNITUDE) | (x.to(tl.int32, bitcast=True) & -0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def pairs_of_float32(even, odd):
    """uint8 pairs of e2m1 / 64, by four: in e4m3 that is the sign and, two places up, the code."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b16 a, b;
        .reg .b32 e, o, s, t;
        cvt.rn.satfinite.e4m3x2.f32 a, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 b, $4, $3;
        mov.b32 e, {a, b};
        cvt.rn.satfinite.e4m3x2.f32 a, $6, $5;
        cvt.rn.satfinite.e4m3x2.f32 b, $8, $7;
        mov.b32 o, {a, b};
        shr.b32 s, e, 2;
        shr.b32 t, e, 4;
        and.b32 s, s, 0x07070707;
        and.b32 t, t, 0x08080808;
        or.b32 s, s, t;
        shl.b32 t, o, 2;
        and.b32 t, t, 0x70707070;
        or.b32 s, s, t;
        and.b32 o, o, 0x80808080;
        or.b32 $0, s, o;
        }
        """,
        "=r,r,r,r,r,r,r,r,r",
        [even, odd],
        dtype=tl.uint8,
        is_pure=True,
        pack=4,
    )


def _two_codes(to: str, high: int, low: int) -> str:
    """PTX that rounds operands `high` and `low` to e2m1 in the halves of register `to`, whose signs stay in bit 15.

    float16 of values times 2^-14 has the bits of e2m1 from bit 9 on, denormals included: integers round two at once.
    """
    return f"""
        cvt.rn.f16x2.f32 {to}, ${high}, ${low};
        abs.f16x2 r, {to};
        min.f16x2 r, r, most;
        shr.b32 t, r, 9;
        and.b32 t, t, 0x00010001;
        add.u32 r, r, t;
        add.u32 r, r, 0x00FF00FF;
        lop3.b32 {to}, r, {to}, 0x80008000, 0xD8;"""


# Operands 1 to 4 are even values, 5 to 8 odd ones, 9 to 12 masks: a and c hold codes of even values, b and d of odd.
FOUR_PAIRS = tl.constexpr(
    f"""
        {{
        .reg .b32 a, b, c, d, r, t, most;
        mov.b32 most, 0x0E000E00;
        {_two_codes("a", 3, 1)}
        {_two_codes("b", 7, 5)}
        {_two_codes("c", 4, 2)}
        {_two_codes("d", 8, 6)}
        prmt.b32 a, a, c, 0x7351;
        prmt.b32 b, b, d, 0x7351;
        shr.b32 c, a, 1;
        shr.b32 d, a, 4;
        and.b32 c, c, 0x07070707;
        and.b32 d, d, 0x08080808;
        or.b32 c, c, d;
        shl.b32 d, b, 3;
        and.b32 d, d, 0x70707070;
        or.b32 c, c, d;
        and.b32 b, b, 0x80808080;
        or.b32 c, c, b;
        prmt.b32 r, $9, $10, 0x0040;
        prmt.b32 t, $11, $12, 0x4000;
        prmt.b32 r, r, t, 0x7610;
        and.b32 $0, c, r;
        }}
        """
)


@triton.jit
def pairs_of_bfloat16(even, odd, keep):
    """uint8 pairs of codes of values times 2^-14, to nearest even, saturating; 0 where `keep` is 0, not -1."""
    return tl.inline_asm_elementwise(
        FOUR_PAIRS,
        "=r,f,f,f,f,f,f,f,f,r,r,r,r",
        [even, odd, keep],
        dtype=tl.uint8,
        is_pure=True,
        pack=4,
    )
