"""Index queries and keys through the product's number formats, for evaluation: quantise, and give back float32."""

from collections.abc import Callable

from torch import Tensor

from dsv4_kernels import formats
from dsv4_kernels.reference import transform

CONVENTION, CONVENTION_V41 = "aiter", "rne_v41"
"""Rounding of the FP4 writers on gfx950; `dsv4 eval` compares the others."""


def fp8(x: Tensor) -> Tensor:
    """e4m3 with one float32 scale a vector (last axis)."""
    values, scale = formats.quantize_e4m3(x.float())
    return values.float() * scale.unsqueeze(-1)


def fp4(x: Tensor) -> Tensor:
    """e2m1 with one power-of-two scale for each 32 values of the last axis."""
    return _fp4_columns(_columns(x)).t().reshape(x.shape)


def fp4_v41(x: Tensor) -> Tensor:
    """fp4 as V4.1's writers round."""
    return _fp4_columns(_columns(x), CONVENTION_V41).t().reshape(x.shape)


def fp4_hadamard(x: Tensor) -> Tensor:
    """fp4 after the Hadamard rotation; dot products need no inverse, since both sides are rotated."""
    return _fp4_columns(transform.hadamard(_columns(x))).t().reshape(x.shape)


FORMATS: dict[str, Callable[[Tensor], Tensor]] = {"fp8": fp8, "fp4": fp4, "fp4+hadamard": fp4_hadamard}
FORMATS_V41: dict[str, Callable[[Tensor], Tensor]] = {"fp8": fp8, "fp4": fp4_v41}


def _columns(x: Tensor) -> Tensor:
    return x.float().reshape(-1, x.shape[-1]).t().contiguous()


def _fp4_columns(columns: Tensor, convention: str = CONVENTION) -> Tensor:
    codes, scale = formats.quantize_columns(columns, formats.convention(convention))
    return formats.dequantize_columns(codes, scale)
