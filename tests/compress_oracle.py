"""Compressed entries written out once more with numpy in float64, token by token; imports no kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

WINDOWS = {1: 1, 2: 2, 4: 8, 128: 128}


def width(ratio: int, dim: int) -> int:
    """Columns of a projection."""
    return {1: 1, 2: 2, 4: 4, 128: 2}[ratio] * dim


def pooled(ratio: int, tokens: Floats, ape: Floats | None, entry: int) -> Doubles:
    """Entry number `entry` of a request with the projected `tokens` [n, width]: float64 [dim]."""
    dim = tokens.shape[1] // width(ratio, 1)
    if ratio == 1:
        own: Doubles = tokens[entry].astype(np.float64)
        return own
    last = entry * ratio + ratio - 1
    values, gates = [], []
    for position in range(max(0, last - WINDOWS[ratio] + 1), last + 1):
        series = int(ratio == 4 and position >= entry * ratio)
        of_series = slice(series * dim, series * dim + dim)
        value, gate = np.split(tokens[position], 2)
        bias = np.zeros(dim, np.float32) if ape is None else ape[position % ratio, of_series]
        values.append(value[of_series].astype(np.float64))
        gates.append((gate[of_series] + bias).astype(np.float64))
    gate, value = np.stack(gates), np.stack(values)
    weight = np.exp(gate - gate.max(0))
    total: Doubles = (value * weight).sum(0) / weight.sum(0)
    return total


def rounded(x: Doubles | Floats) -> Doubles:
    """To bfloat16."""
    nearest: Doubles = x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)
    return nearest


def latent(entry: Doubles, weight: Floats, eps: float) -> Doubles:
    """RMSNorm of an entry, both rounded to bfloat16."""
    x = rounded(entry)
    return rounded(x / np.sqrt((x * x).mean() + eps) * weight)
