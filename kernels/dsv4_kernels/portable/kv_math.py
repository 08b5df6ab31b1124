"""Arithmetic of main KV rows inside the portable kernels: bit for bit that of the reference.

NATIVE says that the device converts e4m3 itself and fuses multiply-adds (NVIDIA from sm89 on); elsewhere, and in the
interpreter, integers do the same.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

INFINITY = tl.constexpr(0x7F800000)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def sum_pairs(x, R: tl.constexpr, N: tl.constexpr):
    return tl.sum(tl.reshape(x, (R, N // 2, 2)), axis=2)


@triton.jit
def rms_norm_512(x, weight, eps, R: tl.constexpr):
    """[R, 512] times 1 / rms times weight; neighbours are added first, because a thread holds neighbours."""
    s = sum_pairs(x * x, R, 512)
    s = sum_pairs(s, R, 256)
    s = sum_pairs(s, R, 128)
    s = sum_pairs(s, R, 64)
    s = sum_pairs(s, R, 32)
    s = sum_pairs(s, R, 16)
    s = sum_pairs(s, R, 8)
    s = sum_pairs(s, R, 4)
    s = tl.reshape(sum_pairs(s, R, 2), (R,))
    return (x * tl.div_rn(1.0, tl.sqrt_rn(s * (1.0 / 512) + eps))[:, None]) * weight[None, :]


@triton.jit
def bfloat16_bits(x, NATIVE: tl.constexpr):
    """int32 whose low half are the bits of the bfloat16 nearest to float32 `x`; every NaN is 0x7FC0."""
    bits = x.to(tl.int32, bitcast=True)
    if NATIVE:
        rounded = x.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
    else:
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where((bits & MAGNITUDE) > INFINITY, 0x7FC0, rounded)


@triton.jit
def round_bfloat16(x, NATIVE: tl.constexpr):
    """float32 values rounded to bfloat16; NaN stays one."""
    if NATIVE:
        return x.to(tl.bfloat16).to(tl.float32)
    return (bfloat16_bits(x, NATIVE) << 16).to(tl.float32, bitcast=True)


@triton.jit
def store_rounded(base, at, x, live, NATIVE: tl.constexpr):
    """float32 `x` to `base + at` in the pointer's type; bfloat16 as bits, because the interpreter's own cast is off."""
    if base.dtype.element_ty == tl.bfloat16 and not NATIVE:
        tl.store(base.to(tl.pointer_type(tl.int16)) + at, bfloat16_bits(x, NATIVE).to(tl.int16), mask=live)
    else:
        tl.store(base + at, x.to(base.dtype.element_ty), mask=live)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def amax_bits(groups, NATIVE: tl.constexpr):
    """int32 bits [R, G] of the largest magnitude of each group of [R, G, N]; NaN is larger than all."""
    if NATIVE:
        return tl.reduce(tl.abs(groups), 2, _larger).to(tl.int32, bitcast=True)
    return tl.max(groups.to(tl.int32, bitcast=True) & MAGNITUDE, axis=2)


@triton.jit
def turn_rows(x, cos_ptr, sin_ptr, position, limit, stride_angle, live, R: tl.constexpr, NATIVE: tl.constexpr):
    """[R, 512] with its last 32 pairs turned and rounded to bfloat16."""
    pair = tl.arange(0, 256)
    held = tl.minimum(tl.maximum(position, 0), limit - 1)
    at = (held * stride_angle)[:, None] + (pair - 224)[None, :]
    turning = live[:, None] & (pair[None, :] >= 224)
    cos = tl.load(cos_ptr + at, mask=turning, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + at, mask=turning, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (R, 256, 2)))
    turned = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (R, 512))
    # A value that stays is passed through, because x - y * 0 would lose the sign of a zero and spread a NaN.
    return tl.where(tl.arange(0, 512)[None, :] >= 448, round_bfloat16(turned, NATIVE), x)


@triton.jit
def encode_e4m3(x, NATIVE: tl.constexpr):
    """uint8 codes, to nearest even, of |x| <= 448."""
    if NATIVE:
        return x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    bits = x.to(tl.int32, bitcast=True)
    magnitude = bits & MAGNITUDE
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - 960
    # Below 2^-6 codes are multiples of 2^-9, which is the last place of 2^14.
    moved = magnitude.to(tl.float32, bitcast=True) + 16384.0
    code = tl.where(magnitude < 0x3C800000, moved.to(tl.int32, bitcast=True) - 0x46800000, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def decode_e4m3(code, NATIVE: tl.constexpr):
    """float32 of uint8 codes."""
    if NATIVE:
        return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    wide = code.to(tl.int32)
    # Under float32's exponent the code is the value times 2^-120, denormals included.
    value = ((wide & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36
    bits = tl.where((wide & 0x7F) == 0x7F, 0x7FC00000, value.to(tl.int32, bitcast=True)) | ((wide & 0x80) << 24)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def decode_e8m0(byte):
    """float32 of int32 bytes: 0 is the subnormal 2^-127, 255 is NaN."""
    return tl.where(byte == 0, 0x400000, tl.where(byte == 255, 0x7FC00000, byte << 23)).to(tl.float32, bitcast=True)


@triton.jit
def encode_e2m1(x):
    """int32 codes, to nearest even, saturating; signs stay."""
    a = tl.minimum(tl.abs(x), 6.0)
    exponent = tl.maximum(a.to(tl.int32, bitcast=True), 0x3F800000) & INFINITY
    # Of magic, 2^22 times the power of two at or below `a`, the last place is the distance of codes there.
    magic = (exponent + 0x0B000000).to(tl.float32, bitcast=True)
    steps = (a + magic).to(tl.int32, bitcast=True) - (exponent + 0x0B000000)
    return (steps + ((exponent >> 22) - 254)) | ((x.to(tl.int32, bitcast=True) >> 28) & 8)


@triton.jit
def _rounded_to_e2m1(x, scale64, inverse):
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
def _packed_sm89(even, odd):
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


@triton.jit
def decode_e2m1(code):
    """float32 of int32 codes 0..15; higher bits are ignored."""
    magnitude = ((code & 7) << 22).to(tl.float32, bitcast=True) * 8.507059173023462e37
    return (magnitude.to(tl.int32, bitcast=True) | ((code & 8) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def quantize_e4m3(groups, NATIVE: tl.constexpr):
    """[R, G, N] to uint8 codes of the same shape and int32 e8m0 bytes [R, G]."""
    amax = amax_bits(groups, NATIVE)
    # 448 = 1.75 * 2^8: the exponent of the ceiling moves up when the mantissa exceeds .75.
    byte = tl.maximum((amax >> 23) - 8 + ((amax & 0x7FFFFF) > 0x600000).to(tl.int32), 114)
    poisoned = amax >= INFINITY
    inverse = ((254 - byte) << 23).to(tl.float32, bitcast=True)
    scaled = tl.where(tl.expand_dims(poisoned, 2), 0.0, groups * tl.expand_dims(inverse, 2))
    return encode_e4m3(scaled, NATIVE), tl.where(poisoned, 255, byte)


@triton.jit
def _sixth(amax, NATIVE: tl.constexpr):
    """amax / 6, which decides the scale. Six times a halfway place of e4m3 has at most 8 bits, so as above."""
    if NATIVE:
        guess = amax * 0.16666667163372040
        return tl.fma(tl.fma(-guess, 6.0, amax), 0.16666667163372040, guess)
    return tl.div_rn(amax, 6.0)


@triton.jit
def quantize_e2m1(even, odd, R: tl.constexpr, NATIVE: tl.constexpr):
    """The even and the odd values of rows, [R, 256] each, to uint8 pairs of codes [R, 256] and e4m3 scales [R, 32]."""
    even, odd = tl.reshape(even, (R, 32, 8)), tl.reshape(odd, (R, 32, 8))
    if NATIVE:
        larger = tl.maximum(tl.abs(even), tl.abs(odd), propagate_nan=tl.PropagateNan.ALL)
        amax = amax_bits(larger, NATIVE)
    else:
        amax = tl.maximum(amax_bits(even, NATIVE), amax_bits(odd, NATIVE))
    poisoned = amax >= INFINITY
    known = tl.where(poisoned, 0, amax).to(tl.float32, bitcast=True)
    byte = encode_e4m3(tl.minimum(tl.maximum(_sixth(known, NATIVE), 0.001953125), 448.0), NATIVE)
    scale = decode_e4m3(byte, NATIVE)
    if NATIVE:
        scale64 = scale * 64.0
        inverse = tl.expand_dims(1.0 / scale64, 2)
        scale64 = tl.expand_dims(scale64, 2)
        pairs = _packed_sm89(_rounded_to_e2m1(even, scale64, inverse), _rounded_to_e2m1(odd, scale64, inverse))
    else:
        divisor = tl.expand_dims(scale, 2)
        low, high = encode_e2m1(tl.div_rn(even, divisor)), encode_e2m1(tl.div_rn(odd, divisor))
        pairs = (low | (high << 4)).to(tl.uint8)
    pairs = tl.where(tl.expand_dims(poisoned, 2), 0, pairs).to(tl.uint8)
    return tl.reshape(pairs, (R, 256)), tl.where(poisoned, 127, byte).to(tl.uint8)
