"""Launches of plain Triton kernels: from the build directory where one is in use and has the kernel, else compiled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dsv4_kernels import counters
from dsv4_kernels.operation_kernels import OperationKernel, aligned, operation_kernels

TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}

_trial: ContextVar[bool] = ContextVar("trial", default=False)


@contextmanager
def trial() -> Iterator[None]:
    """Within it a launch that is compiled is no fallback: known questions come in forms that nothing else launches."""
    before = _trial.set(True)
    try:
        yield
    finally:
        _trial.reset(before)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Mapping[str, Any],
    constants: Mapping[str, Any],
    warps: int,
    registers: int | None = None,
) -> None:
    """Launch a kernel of `triton.jit` with its run-time `arguments` and compile-time `constants`, by name.

    `registers` bounds those of a thread on NVIDIA's machines, the only ones whose compiler takes such a bound.

    A call that a build directory is in use for and has no object of is compiled and counted.
    """
    # Not above: the gfx950 package imports kernels that are launched from here.
    from dsv4_kernels.gfx950 import compiled

    store = compiled.active()
    if store is not None:
        known = _known(kernel.__name__, arguments, constants)
        if known is not None and store.has(known.name) and _taken(arguments):
            x, y, z = (*grid, 1, 1)[:3]
            store.launch(known.name, (x, y, z), arguments)
            return
        if not _trial.get():
            counters.count_fallback(kernel.__name__.strip("_"), "not among the kernels compiled ahead of time")
    bound = {} if registers is None else {"maxnreg": registers}
    kernel[grid](**arguments, **constants, num_warps=warps, enable_fp_fusion=False, **bound)


@cache
def _by_function() -> dict[str, list[OperationKernel]]:
    found: dict[str, list[OperationKernel]] = {}
    for kernel in operation_kernels():
        found.setdefault(kernel.function.rpartition(":")[2], []).append(kernel)
    return found


def _known(name: str, arguments: Mapping[str, Any], constants: Mapping[str, Any]) -> OperationKernel | None:
    types = {k: TYPES.get(v.dtype) for k, v in arguments.items() if isinstance(v, Tensor)}
    for kernel in _by_function().get(name, ()):
        of = dict(kernel.types)
        if dict(kernel.constants) == constants and all(of[k] == v for k, v in types.items()):
            return kernel
    return None


def _taken(arguments: Mapping[str, Any]) -> bool:
    """Whether pointers and strides are the multiples of 16 that objects are compiled for, and numbers fit 32 bits."""
    numbers = {k: v for k, v in arguments.items() if isinstance(v, int)}
    pointers = {k: v.data_ptr() for k, v in arguments.items() if isinstance(v, Tensor)}
    multiples = all(v % 16 == 0 for k, v in (numbers | pointers).items() if aligned(k))
    return multiples and all(-(2**31) <= v < 2**31 for v in numbers.values())
