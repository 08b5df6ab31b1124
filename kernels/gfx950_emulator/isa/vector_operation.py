"""The table of lane-wise vector operations: types of result and sources, and the function on arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gfx950_emulator.isa.values import Type
from gfx950_emulator.machine.arrays import Array


@dataclass(frozen=True)
class VectorOperation:
    """`function` takes one typed array a source and returns the result, in the result type's dtype or 32 bits wide.

    accumulates: the last source is the destination itself (v_fmac, v_dot2c).
    """

    result: Type
    sources: tuple[Type, ...]
    function: Callable[..., Array]
    accumulates: bool = False


OPERATIONS: dict[str, VectorOperation] = {}


def define(
    names: str,
    result: Type,
    sources: tuple[Type, ...],
    function: Callable[..., Array],
    accumulates: bool = False,
) -> None:
    """Register one operation under one or several mnemonics."""
    for name in names.split():
        OPERATIONS[name] = VectorOperation(result, sources, function, accumulates)
