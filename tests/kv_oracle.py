"""Main KV rows written out once more with numpy, from the formats' published definitions; imports no kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Name: data and scale bytes, what pages are padded to, whether a row's scales stand behind its data.
ROWS = {
    "v4": (576, 8, 576, False),
    "v4_interleaved": (576, 8, 1, True),
    "v41": (512, 16, 512, False),
    "v41_interleaved": (512, 16, 1, True),
    "v41_fp4": (256, 32, 256, False),
    "v41_fp4_interleaved": (256, 32, 1, True),
}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def page_bytes(name: str, page_rows: int) -> int:
    data, scale, align, _ = ROWS[name]
    return -(-page_rows * (data + scale) // align) * align


def places(name: str, page_rows: int, o: int) -> tuple[int, int]:
    """Where data and scales of row `o` of a page begin."""
    data, scale, _, interleaved = ROWS[name]
    if interleaved:
        return o * (data + scale), o * (data + scale) + data
    return o * data, page_rows * data + o * scale


def e4m3_group(group: Floats, minimum: int = -13) -> tuple[list[int], int]:
    """Codes and the e8m0 byte: the least power of two from 2^-13 up that brings every value to 448 or below."""
    if not np.isfinite(group).all():
        return [0] * len(group), 255
    exponent = minimum
    while np.abs(group.astype(np.float64)).max() / 2.0**exponent > 448:
        exponent += 1
    scaled = group.astype(np.float64) / 2.0**exponent
    return [int(b) for b in scaled.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)], exponent + 127


def e2m1_code(x: np.float32) -> int:
    """The nearest magnitude; of two as near, the even code."""
    a = float(abs(x))
    code = min(range(8), key=lambda c: (abs(E2M1[c] - min(a, 6.0)), c % 2))
    return code + 8 * int(np.signbit(x))


def e2m1_group(group: Floats) -> tuple[list[int], int]:
    """Codes and the e4m3 byte of amax / 6 in float32, held in 2^-9..448."""
    if not np.isfinite(group).all():
        return [0] * len(group), 127
    scale = np.clip(np.abs(group).max() / np.float32(6), np.float32(2.0**-9), np.float32(448))
    byte = scale.astype(ml_dtypes.float8_e4m3fn)
    return [e2m1_code(x / np.float32(byte)) for x in group], int(byte.view(np.uint8))


def bfloat16(x: Floats) -> Bytes:
    """Bytes to nearest even; every NaN is 0x7FC0."""
    bits = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), bits).astype("<u2").view(np.uint8)


def encode(name: str, row: Floats) -> tuple[Bytes, Bytes]:
    """Data and scale bytes of one row of 512 float32."""
    kind = name.removesuffix("_interleaved")
    if kind == "v41_fp4":
        groups = [e2m1_group(g) for g in row.reshape(32, 16)]
        codes = np.concatenate([np.array(c) for c, _ in groups])
        return (codes[0::2] + 16 * codes[1::2]).astype(np.uint8), np.array([s for _, s in groups], np.uint8)
    if kind == "v41":
        groups = [e4m3_group(g) for g in row.reshape(16, 32)]
        return np.concatenate([np.array(c, np.uint8) for c, _ in groups]), np.array([s for _, s in groups], np.uint8)
    groups = [e4m3_group(g) for g in row[:448].reshape(7, 64)]
    codes = np.concatenate([np.array(c, np.uint8) for c, _ in groups])
    return np.concatenate([codes, bfloat16(row[448:])]), np.array([*(s for _, s in groups), 0], np.uint8)


def decode(name: str, data: Bytes, scales: Bytes) -> Floats:
    """The 512 values of a row in float32."""
    kind = name.removesuffix("_interleaved")
    if kind == "v41_fp4":
        table = np.array(E2M1 + tuple(-m for m in E2M1), np.float32)
        codes = np.stack([data & 15, data >> 4], -1).reshape(-1)
        values: Floats = table[codes] * scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32).repeat(16)
        return values
    group, coded = (32, 512) if kind == "v41" else (64, 448)
    factors = np.array([np.nan if b == 255 else 2.0 ** (int(b) - 127) for b in scales[: coded // group]])
    with np.errstate(over="ignore", invalid="ignore"):
        product = data[:coded].view(ml_dtypes.float8_e4m3fn).astype(np.float64) * factors.repeat(group)
        values = product.astype(np.float32)
    return np.concatenate([values, data[coded:].view(ml_dtypes.bfloat16).astype(np.float32)])


def norm_rope(row: Floats, weight: Floats, eps: float, cos: Floats, sin: Floats) -> Floats:
    """Norm and RoPE in float32, each rounded to bfloat16; `cos` and `sin` [32] are those of the row's position."""
    total = row * row
    while total.size > 1:
        total = total[0::2] + total[1::2]
    root = np.sqrt(total[0] * np.float32(1 / 512) + np.float32(eps))
    x: Floats = ((row * (np.float32(1) / root)) * weight).astype(ml_dtypes.bfloat16).astype(np.float32)
    x[448:] = rope(x[448:], cos, sin)
    return x


def rope(tail: Floats, cos: Floats, sin: Floats) -> Floats:
    """64 values, adjacent pairs turned, rounded to bfloat16."""
    even, odd = tail[0::2], tail[1::2]
    turned = np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(-1)
    rounded: Floats = turned.astype(ml_dtypes.bfloat16).astype(np.float32)
    return rounded


def hard_rows(seed: int, n: int) -> Floats:
    """Rows over many octaves, halfway values, zeros of both signs, denormals, saturation, NaN and infinities."""
    dice = np.random.default_rng(seed)
    x: Floats = (dice.standard_normal((n, 512)) * np.exp2(dice.uniform(-30, 30, (n, 1)))).astype(np.float32)
    x[0] = dice.integers(-48, 49, 512) / 8 * 2.0 ** dice.integers(-6, 7)
    x[1 % n, ::5], x[1 % n, 1::5] = -0.0, 0.0
    x[2 % n, ::3] = 1e-41
    x[3 % n] = dice.uniform(-3.4e38, 3.4e38, 512)
    x[4 % n, [0, 70, 300, 449]] = [np.nan, np.inf, -np.inf, -np.nan]
    x[4 % n, [450, 451]] = [np.inf, 3.4e38]
    x[5 % n] = 0.0
    return x
