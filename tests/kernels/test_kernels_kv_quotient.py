"""Scales and codes of e2m1 without a division, as NVIDIA GPUs get them: with fused multiply-adds on the emulator.

The reciprocal is handed in, as far off as a GPU's may be; conversions to e4m3 and packing are left to the GPU.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import kv_oracle as oracle
from dsv4_kernels.portable import kv_codes, kv_sm89
from gfx950_emulator import active

BLOCK = 1024


@triton.jit
def rounded_kernel(x_ptr, scale_ptr, inverse_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, scale64, inverse = tl.load(x_ptr + at), tl.load(scale_ptr + at), tl.load(inverse_ptr + at)
    tl.store(out_ptr + at, kv_sm89.rounded_to_e2m1(x, scale64, inverse))


@triton.jit
def sixth_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, kv_codes._sixth(tl.load(x_ptr + at), True))


def neighbours(x: oracle.Floats) -> oracle.Floats:
    """`x`, the floats beside it, and those two further."""
    up, down = np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))
    return np.concatenate([x, up, down, np.nextafter(up, np.float32(np.inf)), np.nextafter(down, np.float32(-np.inf))])


def padded(x: oracle.Floats) -> torch.Tensor:
    return torch.from_numpy(np.pad(x, (0, -x.size % BLOCK), constant_values=1)).contiguous()


def e4m3_values() -> oracle.Floats:
    """The 126 positive values."""
    values: oracle.Floats = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return values


@pytest.mark.parametrize("error", [-3, 0, 3])
def test_codes_are_those_of_the_division_beside_every_threshold(error: int) -> None:
    scales, places = [], []
    thresholds = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0, 0.0, 1e-30, 1e30], np.float32)
    for scale in e4m3_values():
        x = neighbours(thresholds * scale)
        places += [x, -x]
        scales.append(np.full(2 * x.size, scale, np.float32))
    x, scale = np.concatenate(places), np.concatenate(scales)
    inverse = (np.float32(1) / (scale * 64)).view(np.int32) + error
    arguments = [padded(a) for a in (x, scale * 64, inverse.view(np.float32))]
    out = torch.empty_like(arguments[0])
    with active():
        rounded_kernel[(out.numel() // BLOCK,)](*arguments, out, BLOCK=BLOCK, enable_fp_fusion=False)
    table = np.array([*oracle.E2M1, *(-m for m in oracle.E2M1)], np.float32)
    want = table[[oracle.e2m1_code(q) for q in x / scale]]
    got = out.numpy()[: x.size] * 64
    assert np.array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(x))


def test_scales_are_those_of_the_division_beside_every_place_where_they_change() -> None:
    values = e4m3_values()
    middles = ((values[1:].astype(np.float64) + values[:-1]) * 3).astype(np.float32)
    amax = np.concatenate([neighbours(middles), neighbours(values * 6), np.array([0.0, 1e-41, 3.4e38], np.float32)])
    out = torch.empty_like(padded(amax))
    with active():
        sixth_kernel[(out.numel() // BLOCK,)](padded(amax), out, BLOCK=BLOCK, enable_fp_fusion=False)
    held = [np.clip(s, np.float32(2.0**-9), np.float32(448)) for s in (out.numpy()[: amax.size], amax / np.float32(6))]
    got, want = (s.astype(ml_dtypes.float8_e4m3fn).view(np.uint8) for s in held)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("error", [-3, 0, 3])
def test_codes_of_bfloat16_by_way_of_float16_are_those_of_the_division(error: int) -> None:
    """Every positive bfloat16 by every scale, in the steps of `kv_sm89.pairs_of_bfloat16`."""
    x = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
    bounds = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    with np.errstate(over="ignore"):
        for scale in e4m3_values():
            inverse = ((np.float32(1) / (scale * 16384)).view(np.int32) + error).view(np.float32)
            bits = np.minimum((x * inverse).astype(np.float16).view(np.uint16), 0x0E00)
            got = (bits + (bits >> 9 & 1) + 0xFF) >> 9
            q = x.astype(np.float64) / scale
            # Halfway places go to the even code: those after an even one belong to it.
            want = np.where(
                np.isin(q, bounds[::2]), np.searchsorted(bounds, q), np.searchsorted(bounds, q, side="right")
            )
            assert np.array_equal(got, want)
