"""The yardstick: a byte model of fixed order with Witten-Bell smoothing."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]


def perplexity(train: bytes, text: bytes, order: int) -> float:
    """Per-byte perplexity on `text` of a model that sees the last `order` bytes, order 0 to 6."""
    if not 0 <= order <= 6:
        raise ValueError(f"order is {order}; 0 to 6 fit a 64-bit key")
    seen, asked = (np.frombuffer(data, np.uint8).astype(np.int64) for data in (train, text))
    probability = np.full(len(asked), 1 / 256)
    for length in range(order + 1):
        probability = _mix(_keys(seen, length), _keys(asked, length), probability)
    return float(np.exp(-np.log(probability).mean()))


def _keys(data: Array, length: int) -> Array:
    """Each byte with the `length` bytes before it, as one integer (zeros before the start)."""
    keys = np.zeros(len(data), np.int64)
    for back in range(length, -1, -1):
        shifted = np.zeros_like(data)
        shifted[back:] = data[: len(data) - back]
        keys = keys * 256 + shifted
    return keys


def _mix(seen: Array, asked: Array, shorter: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Witten-Bell: counts of this context, and the shorter context's probability for as much as it has kinds."""
    keys, counts = np.unique(seen, return_counts=True)
    contexts, first, kinds = np.unique(keys // 256, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first)
    count = _look_up(keys, counts, asked)
    total, kind = _look_up(contexts, totals, asked // 256), _look_up(contexts, kinds, asked // 256)
    mixed = (count + kind * shorter) / np.maximum(total + kind, 1)
    return np.where(total > 0, mixed, shorter)


def _look_up(keys: Array, values: Array, wanted: Array) -> Array:
    place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
