"""Operands of MX matrix products whose sums are exact in float32, so that results can be compared bit by bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Doubles = npt.NDArray[np.float64]
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def _integer_codes(dtype: torch.dtype) -> list[int]:
    """Codes of whole numbers up to 8."""
    values = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    return [code for code, v in enumerate(values.tolist()) if v == v and abs(v) <= 8 and v == int(v)]


FP8_EXACT = {name: _integer_codes(dtype) for name, dtype in _DTYPES.items()}


def random_operand(rng: np.random.Generator, form: str, rows: int, k: int) -> tuple[torch.Tensor, Doubles]:
    """(tensor as the kernel takes it, decoded values [rows, k])."""
    if form == "e2m1":
        packed = rng.integers(0, 256, (rows, k // 2)).astype(np.uint8)
        values = np.stack([_FP4[packed & 15], _FP4[packed >> 4]], -1).reshape(rows, k)
        return torch.from_numpy(packed), values
    if form == "bf16":
        numbers = rng.integers(-8, 9, (rows, k)).astype(np.float32)
        return torch.from_numpy(numbers).bfloat16(), numbers.astype(np.float64)
    codes = torch.from_numpy(rng.choice(np.array(FP8_EXACT[form], np.uint8), (rows, k)))
    typed = codes.view(_DTYPES[form])
    return typed, typed.double().numpy()


def random_scales(rng: np.random.Generator, rows: int, k: int) -> torch.Tensor:
    """E8M0 scales 2^-2 ... 2^2, [rows, k / 32]."""
    return torch.from_numpy(rng.integers(125, 130, (rows, k // 32)).astype(np.uint8))


def dequantize_mx(values: Doubles, scales: torch.Tensor) -> Doubles:
    """Values times the scale of their block of 32."""
    factors = np.exp2(scales.numpy().astype(np.float64) - 127)
    return np.asarray(values * np.repeat(factors, 32, 1))
