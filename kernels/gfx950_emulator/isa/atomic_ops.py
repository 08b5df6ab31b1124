"""What atomic operations compute, and how colliding lanes take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gfx950_emulator.isa.float_math import from_bf16, maximum, minimum, to_bf16
from gfx950_emulator.machine.arrays import I64, U32, Array

AtomicFunction = Callable[[Array, Array], Array]
"""(old values, operand) to new values, both of one unsigned dtype."""


def _signed(function: AtomicFunction) -> AtomicFunction:
    def apply(old: Array, operand: Array) -> Array:
        kind = f"i{old.dtype.itemsize}"
        return function(old.view(kind), operand.view(kind)).view(old.dtype)

    return apply


def _floating(function: AtomicFunction) -> AtomicFunction:
    def apply(old: Array, operand: Array) -> Array:
        kind = f"f{old.dtype.itemsize}"
        return np.asarray(function(old.view(kind), operand.view(kind))).astype(kind).view(old.dtype)

    return apply


def _packed_f16(old: Array, operand: Array) -> Array:
    old, operand = np.ascontiguousarray(old), np.ascontiguousarray(operand)
    return (old.view(np.float16) + operand.view(np.float16)).view(np.uint32)


def _packed_bf16(old: Array, operand: Array) -> Array:
    old, operand = np.ascontiguousarray(old), np.ascontiguousarray(operand)
    total = from_bf16(old.view(np.uint16)) + from_bf16(operand.view(np.uint16))
    return to_bf16(total).astype(np.uint16).view(np.uint32)


FUNCTIONS: dict[str, AtomicFunction] = {
    "swap": lambda old, operand: operand,
    "add": lambda old, operand: old + operand,
    "sub": lambda old, operand: old - operand,
    "rsub": lambda old, operand: operand - old,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "umin": np.minimum,
    "umax": np.maximum,
    "smin": _signed(np.minimum),
    "smax": _signed(np.maximum),
    "inc": lambda old, operand: np.where(old >= operand, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, operand: np.where((old == 0) | (old > operand), operand, old - old.dtype.type(1)),
    "fadd": _floating(np.add),
    "fmin": _floating(minimum),
    "fmax": _floating(maximum),
    "pk_add_f16": _packed_f16,
    "pk_add_bf16": _packed_bf16,
}


def turns(addresses: I64) -> Iterator[I64]:
    """Position groups without colliding addresses; colliding lanes go in order of position.

    Hardware leaves the order open; here it is the lowest wave, then the lowest lane first.
    """
    if len(addresses) == 0:
        return
    order = np.argsort(addresses, kind="stable")
    ordered = addresses[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    rank = np.arange(len(order)) - starts
    for turn in range(int(rank.max()) + 1):
        yield order[rank == turn]


def to_values(words: U32) -> Array:
    """Register words [k, 1 or 2] to uint32 or uint64 [k]."""
    if words.shape[1] == 1:
        return words[:, 0]
    return np.ascontiguousarray(words[:, :2]).view(np.uint64)[:, 0]


def to_words(values: Array) -> U32:
    """uint32 or uint64 [k] to register words [k, 1 or 2]."""
    if values.dtype.itemsize == 4:
        return values[:, None]
    return np.ascontiguousarray(values).view(np.uint32).reshape(-1, 2)
