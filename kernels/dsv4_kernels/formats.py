"""e2m1, e8m0 and e4m3 codes, and the named conventions by which writers quantise to FP4.

FP4 here is OCP microscaling: 32 values share one e8m0 scale (a power of two, `2 ** (byte - 127)`), each value
is an e2m1 code: bit 3 is the sign, bits 0..2 index `E2M1_MAGNITUDES`. Two codes share a byte, the even
element in the low nibble.

Writers in the field agree on the format and differ in amax floor, division, rounding of ties, and sign of
zero, so pools written by two of them differ in bytes. A `Convention` is one such choice, as data.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

GROUP = 32
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = 6.0
E4M3_MAX = 448.0
FP32_SIXTH = float(np.float32(1.0) / np.float32(6.0))
MIN_NORMAL = 2.0**-126

Ties = Literal["even", "lower"]


@dataclass(frozen=True, slots=True)
class Convention:
    """One way to turn 32 floats into 32 e2m1 codes and one e8m0 byte.

    The unrounded scale is `max(amax, floor) / 6`, or `max(amax / 6, floor)` with `floor_on_scale`;
    `reciprocal` multiplies by the fp32 number nearest to 1/6 instead of dividing. The byte is the exponent of
    the next power of two at or above it, clamped to `min_byte..max_byte`. `ties` says where a value halfway
    between two codes goes. `fake_quantize` quantises and dequantises once by `aiter`'s rule first (V4.1 does:
    lossless then, but other bytes than one stage gives); what comes to it was rounded to bfloat16 after the norm and
    after RoPE, as the published model's activations are. Values beyond 6 scales saturate; NaN takes a code of
    magnitude 6. A group with a non-finite amax has byte 255 (NaN) where `max_byte` allows it.
    """

    name: str
    floor: float
    floor_on_scale: bool
    reciprocal: bool
    ties: Ties
    keep_negative_zero: bool
    min_byte: int = 1
    max_byte: int = 254
    fake_quantize: bool = False

    @property
    def first_stage(self) -> Convention | None:
        """The rule of the round trip that comes first, None where none does."""
        return CONVENTIONS["aiter"] if self.fake_quantize else None


CONVENTIONS: dict[str, Convention] = {
    c.name: c
    for c in (
        # AITER's HIP writers, C4 indexer on gfx950.
        Convention("aiter", E2M1_MAX * MIN_NORMAL, False, True, "even", True, max_byte=255),
        # SGLang's fused CUDA writer for the C4 indexer.
        Convention("cuda_c4", 1e-4, False, False, "lower", False, max_byte=255),
        # SGLang's V4.1 low-ratio packer behind its bf16 fake quantisation.
        Convention("rne_v41", 1e-4, True, False, "even", False, fake_quantize=True),
        # DeepSeek's published inference code, and vLLM's indexer.
        Convention("deepseek", E2M1_MAX * MIN_NORMAL, False, True, "even", True),
    )
}


def convention(name: str) -> Convention:
    """The convention of that name. Raises ValueError that lists the known names."""
    if name not in CONVENTIONS:
        raise ValueError(f"convention={name!r}: accepted is one of {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]


@cache
def _encode_table(ties: Ties, keep_negative_zero: bool, device: torch.device) -> Tensor:
    """uint8 [8192]: the code by the place of a float among the multiples of 2**20 of its bit pattern.

    Every rounding threshold (.25 .75 1.25 1.75 2.5 3.5 5) has at most three mantissa bits, so the top twelve
    bits of a float and whether the rest is zero decide its code: floor + ceil of bits / 2**20 holds exactly
    that. This makes the encoder exact for all 2**32 floats by construction.
    """
    place = np.arange(8192, dtype=np.int64) - 4096
    bits = ((place >> 1) << 20) | (place & 1)
    values = (bits & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    magnitude = np.nan_to_num(np.abs(values), nan=E2M1_MAX, posinf=E2M1_MAX)
    steps = np.array(E2M1_MAGNITUDES, dtype=np.float32)
    thresholds = (steps[1:] + steps[:-1]) / 2
    if ties == "even":
        thresholds[1::2] = np.nextafter(thresholds[1::2], np.float32(0))
    code = np.searchsorted(thresholds, magnitude, side="left").astype(np.uint8)
    negative = np.signbit(values)
    if not keep_negative_zero:
        negative &= code != 0
    return torch.from_numpy(code | (negative.astype(np.uint8) << 3)).to(device)


def encode_e2m1(x: Tensor, ties: Ties = "even", keep_negative_zero: bool = True) -> Tensor:
    """uint8 codes of float32 `x`, same shape; saturating, exact."""
    bits = x.contiguous().view(torch.int32)
    place = (bits >> 20).add_((bits + 0xFFFFF) >> 20).add_(4096)
    table = _encode_table(ties, keep_negative_zero, x.device)
    return table.index_select(0, place.view(-1)).view(x.shape)


@cache
def e2m1_table(device: torch.device) -> Tensor:
    """float32 [16]: the value of each code; code 8 is -0."""
    return torch.tensor([s * m for s in (1.0, -1.0) for m in E2M1_MAGNITUDES], device=device)


@cache
def e2m1_pair_table(device: torch.device) -> Tensor:
    """float64-typed [256] whose element b holds the two float32 values of byte b, low nibble first."""
    codes = torch.arange(256, device=device)
    values = e2m1_table(device)
    return torch.stack([values[codes & 15], values[codes >> 4]], -1).view(torch.float64).view(-1)


def decode_e2m1_pairs(packed: Tensor) -> Tensor:
    """float32 [..., 2n] of packed uint8 [..., n]. One look-up of eight bytes per byte."""
    pairs = e2m1_pair_table(packed.device).index_select(0, packed.reshape(-1).int())
    return pairs.view(torch.float32).view(*packed.shape[:-1], 2 * packed.shape[-1])


@cache
def e8m0_table(device: torch.device) -> Tensor:
    """float32 [256]: `2 ** (b - 127)`; 0 is the subnormal 2**-127 and 255 is NaN."""
    values = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.float32(np.nan))
    return torch.from_numpy(values.astype(np.float32)).to(device)


def decode_e8m0(scale: Tensor) -> Tensor:
    """float32 scales of uint8 bytes, same shape."""
    return e8m0_table(scale.device).index_select(0, scale.reshape(-1).int()).view(scale.shape)


def ceil_e8m0(x: Tensor) -> Tensor:
    """int32 exponent byte of the least power of two >= `x` (float32, x > 0); 255 where `x` is not finite.

    Adding all ones below the exponent carries into it exactly when the mantissa is not zero; no logarithm is
    involved.
    """
    # torch's maximum over columns turns a NaN into a negative one.
    bits = (x.contiguous().view(torch.int32) & 0x7FFFFFFF).clamp_(max=0x7F800000)
    return (bits + 0x7FFFFF) >> 23


def _sixth(x: Tensor, rule: Convention) -> Tensor:
    return x * FP32_SIXTH if rule.reciprocal else x / E2M1_MAX


def _scale_bytes(amax: Tensor, rule: Convention) -> Tensor:
    if rule.floor_on_scale:
        raw = _sixth(amax, rule).clamp_min(rule.floor)
    else:
        raw = _sixth(amax.clamp_min(rule.floor), rule)
    return ceil_e8m0(raw).clamp(rule.min_byte, rule.max_byte)


def quantize_columns(x: Tensor, rule: Convention) -> tuple[Tensor, Tensor]:
    """Quantise each column of float32 [d, n] in groups of 32 rows: uint8 codes [d, n] and scale bytes [d /
    32, n].

    Columns, because then every step runs over contiguous rows of n values and none depends on a neighbour.
    """
    if rule.first_stage is not None:
        codes, scale = quantize_columns(x, rule.first_stage)
        x = dequantize_columns(codes, scale)
    groups = x.view(x.shape[0] // GROUP, GROUP, x.shape[1])
    byte = _scale_bytes(groups.abs().amax(1), rule)
    scaled = groups / (byte << 23).view(torch.float32).unsqueeze(1)
    return encode_e2m1(scaled, rule.ties, rule.keep_negative_zero).view(x.shape), byte.to(torch.uint8)


def dequantize_columns(codes: Tensor, scale: Tensor) -> Tensor:
    """float32 [d, n] of what `quantize_columns` gives."""
    values = e2m1_table(codes.device)[codes.int()].view(codes.shape[0] // GROUP, GROUP, codes.shape[1])
    return (values * decode_e8m0(scale).unsqueeze(1)).view(codes.shape)


def pack_columns(codes: Tensor) -> Tensor:
    """uint8 [n, d / 2]: columns of codes [d, n] as packed rows, even element in the low nibble."""
    return (codes[0::2] | (codes[1::2] << 4)).t().contiguous()


def quantize_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of float32 [..., d] as float8_e4m3fn [..., d] with one float32 scale [...] = max(amax, 1e-4) /
    448.
    """
    scale = x.abs().amax(-1).clamp_min(1e-4) / E4M3_MAX
    scaled = (x / scale.unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX)
    return scaled.to(torch.float8_e4m3fn), scale
