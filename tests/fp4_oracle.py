"""What FP4 index keys, queries and logits are, written out by hand in numpy float64.

Imports nothing from the project: tests compare the product with it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FLOOR = np.float32(6 * 2.0**-126)
SIXTH = np.float32(np.float32(1) / np.float32(6))


@dataclass(frozen=True)
class Rule:
    """How one writer in the field quantises; the numbers are those of its source."""

    zero_group_byte: int
    ties_to_even: bool
    minus_zero: bool


RULES = {
    "aiter": Rule(0x01, True, True),
    "cuda_c4": Rule(0x70, False, False),
    "rne_v41": Rule(0x72, True, False),
    "deepseek": Rule(0x01, True, True),
}


def code_of(x: float, ties_to_even: bool, minus_zero: bool) -> int:
    """The nearest e2m1 code of a finite float, by distances."""
    distance = np.abs(MAGNITUDES - min(abs(x), 6.0))
    nearest = np.flatnonzero(distance == distance.min())
    code = int(nearest[0])
    if len(nearest) == 2 and ties_to_even:
        code = int(nearest[nearest % 2 == 0][0])
    negative = bool(np.signbit(x)) and (minus_zero or code != 0)
    return code | (8 if negative else 0)


def value_of(code: int) -> float:
    return float(MAGNITUDES[code & 7]) * (-1.0 if code & 8 else 1.0)


def scale_byte(amax: np.float32, name: str) -> int:
    """Exponent byte of a group, from frexp: the mantissa is 0.5 exactly at powers of two."""
    if name in ("aiter", "deepseek"):
        raw = np.float32(max(amax, FLOOR) * SIXTH)
    elif name == "cuda_c4":
        raw = np.float32(max(amax, np.float32(1e-4)) / np.float32(6))
    else:
        raw = max(np.float32(amax / np.float32(6)), np.float32(1e-4))
    mantissa, exponent = np.frexp(np.float64(raw))
    return int(exponent) - (1 if mantissa == 0.5 else 0) + 127


def quantize(x: F32, name: str) -> tuple[U8, U8]:
    """Codes [n, 128] and scale bytes [n, 4] of float32 rows [n, 128]."""
    rule = RULES[name]
    if name == "rne_v41":
        x = dequantize(*quantize(x, "aiter")).astype(np.float32)
    codes = np.zeros(x.shape, np.uint8)
    scales = np.zeros((len(x), 4), np.uint8)
    for i, row in enumerate(x):
        for c in range(4):
            group = row[32 * c : 32 * c + 32]
            byte = scale_byte(np.float32(np.abs(group).max()), name)
            scales[i, c] = byte
            for d, v in enumerate(group):
                scaled = float(v) / 2.0 ** (byte - 127)
                codes[i, 32 * c + d] = code_of(scaled, rule.ties_to_even, rule.minus_zero)
    return codes, scales


def dequantize(codes: U8, scales: U8) -> F64:
    values = MAGNITUDES[codes & 7] * np.where(codes & 8, -1.0, 1.0)
    result: F64 = values * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=-1)
    return result


def packed(codes: U8) -> U8:
    """Two codes a byte, the even element in the low nibble."""
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)


def unpacked(payload: U8) -> U8:
    return np.stack([payload & 15, payload >> 4], -1).reshape(*payload.shape[:-1], -1)


def split64_payload_offset(slot: int, byte: int) -> int:
    page, o = divmod(slot, 64)
    return page * 4096 + byte // 16 * 1024 + o * 16 + byte % 16


def split64_scale_offset(slot: int, group: int) -> int:
    page, o = divmod(slot, 64)
    return page * 256 + group * 64 + o % 16 * 4 + o // 16


def read_split64(payload: U8, scale: U8, slots: I64) -> F64:
    """Dequantised keys [n, 128] out of the flat bytes of a split64 pool."""
    codes = np.array([[payload[split64_payload_offset(int(s), j)] for j in range(64)] for s in slots], np.uint8)
    scales = np.array([[scale[split64_scale_offset(int(s), c)] for c in range(4)] for s in slots], np.uint8)
    return dequantize(unpacked(codes), scales)


def query_scale_offset(row: int, head: int, group: int) -> int:
    return row * 256 + group * 64 + head % 16 * 4 + head // 16


def rope(x: F64, cos: F64, sin: F64) -> F64:
    """Interleaved rotation of the last 64 of 128 dimensions; cos and sin [..., 32] broadcast against x."""
    out = x.copy()
    even, odd = x[..., 64::2], x[..., 65::2]
    out[..., 64::2] = even * cos - odd * sin
    out[..., 65::2] = even * sin + odd * cos
    return out


def hadamard(x: F64) -> F64:
    d = np.arange(128)
    parity = np.array([[bin(i & j).count("1") % 2 for j in d] for i in d])
    result: F64 = x @ (1.0 - 2.0 * parity) / np.sqrt(128.0)
    return result


def rms_norm(x: F64, weight: F64, eps: float) -> F64:
    result: F64 = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return result


def logits(q: F64, keys: F64, weights: F64, scale: float) -> F64:
    """[n] scores of one row: q [H, 128], keys [n, 128], weights [H]."""
    result: F64 = scale * (np.maximum(q @ keys.T, 0.0) * weights[:, None]).sum(0)
    return result
