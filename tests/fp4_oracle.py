"""What FP4 index keys, queries and logits are, written out by hand in numpy float64.

Imports nothing from the project: tests compare the product with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
I64 = NDArray[np.int64]
Offset = Callable[[int, int], int]

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


def _in_page(slots: int, page_bytes: int, at: Callable[[int, int], int]) -> Offset:
    return lambda slot, x: slot // slots * page_bytes + at(slot % slots, x)


def _record(slots: int, n: int) -> tuple[Offset, Offset]:
    """vLLM's records: a page's values, then its scales, both in runs of n tokens."""
    lanes, width = 64 // n, n // 16

    def value(o: int, j: int) -> int:
        run, token, chunk, byte = o // n, o % n, j // 16, j % 16
        return run * n * 64 + chunk * n * 16 + token * 16 + byte

    def scale(o: int, c: int) -> int:
        run, token, lane, place = o // n, o % n, c % lanes, c // lanes
        return slots * 64 + run * n * 4 + (lane * n + token) * width + place

    return _in_page(slots, slots * 68, value), _in_page(slots, slots * 68, scale)


PAYLOAD_OFFSET: dict[str, Offset] = {
    "split64": _in_page(64, 4096, lambda o, j: j // 16 * 1024 + o * 16 + j % 16),
    "split128": _in_page(128, 8192, lambda o, j: j // 16 * 2048 + o * 16 + j % 16),
    "split8": _in_page(8, 512, lambda o, j: ((o % 4) * 4 + j // 16) * 32 + (o // 4) * 16 + j % 16),
    "fused_cuda": _in_page(64, 4352, lambda o, j: o * 64 + j),
    "record68": _record(64, 32)[0],
    "record68_n16": _record(64, 16)[0],
    "record68_p128": _record(128, 32)[0],
}
SCALE_OFFSET: dict[str, Offset] = {
    "split64": _in_page(64, 256, lambda o, c: c * 64 + o % 16 * 4 + o // 16),
    "split128": _in_page(128, 512, lambda o, c: c * 128 + o % 32 * 4 + o // 32),
    "split8": _in_page(8, 32, lambda o, c: c * 8 + o),
    "fused_cuda": _in_page(64, 4352, lambda o, c: 4096 + o * 4 + c),
    "record68": _record(64, 32)[1],
    "record68_n16": _record(64, 16)[1],
    "record68_p128": _record(128, 32)[1],
}


def read_keys(name: str, payload: U8, scale: U8, slots: I64) -> F64:
    """Dequantised keys [n, 128] out of the flat bytes of a pool of an FP4 layout."""
    codes = [[payload[PAYLOAD_OFFSET[name](int(s), j)] for j in range(64)] for s in slots]
    scales = [[scale[SCALE_OFFSET[name](int(s), c)] for c in range(4)] for s in slots]
    return dequantize(unpacked(np.array(codes, np.uint8)), np.array(scales, np.uint8))


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
