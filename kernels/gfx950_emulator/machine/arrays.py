"""Array types and lane constants shared by the machine and the instruction families."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Selection = slice | npt.NDArray[np.intp]

LANES = 64
LANE = np.arange(LANES)


def unpack_mask(low: U32, high: U32) -> Bools:
    """Booleans [n, 64] from the two halves of a lane mask."""
    words = np.ascontiguousarray(np.stack([low, high], -1)).view(np.uint8)
    return np.unpackbits(words, axis=-1, bitorder="little").astype(bool)


def pack_mask(lanes: Bools, waves: int) -> tuple[U32, U32]:
    """Two halves of a lane mask from booleans that broadcast to [waves, 64]."""
    packed = np.packbits(np.broadcast_to(lanes, (waves, LANES)), axis=-1, bitorder="little").view(np.uint32)
    return packed[:, 0], packed[:, 1]


def f32_bits(values: Array) -> U32:
    """Bit pattern of float32 values."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def all_along(flags: Array, axis: int) -> Array:
    """Whether all flags along an axis are set."""
    return np.asarray(flags.all(axis))
