"""Whether a compiled kernel is called as this process would call it: held against the registry before it is loaded."""

from __future__ import annotations

from functools import cache

from dsv4_kernels.kernel_store import CompiledKernel
from dsv4_kernels.operation_kernels import OperationKernel
from dsv4_kernels.registry import KernelVariant

SIZES = {"pointer": 8, "i64": 8, "i32": 4, "u32": 4, "fp32": 4}
WAVE = 64


def operation(name: str) -> str:
    """The operation of a shipped kernel; `name` itself for one that is not shipped."""
    kernel = _shipped().get(name)
    return name if kernel is None else kernel.op


def problem(kernel: CompiledKernel) -> str:
    """What differs from the kernel of this name that this process launches; empty if nothing."""
    known = _shipped().get(kernel.name)
    if known is None:
        return "no kernel of this release is called so"
    expected, end = _layout(known)
    found = {a.name: (a.type, a.offset, a.size) for a in kernel.arguments if a.name}
    differing = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
    if differing:
        told = (f"{n} {_told(found.get(n))}, launched with {_told(expected.get(n))}" for n in differing)
        return f"takes other arguments: {'; '.join(told)}"
    if kernel.argument_bytes < end:
        return f"has {kernel.argument_bytes} bytes of arguments, launched with {end}"
    threads = WAVE * (known.warps if isinstance(known, OperationKernel) else 1)
    return "" if kernel.threads == threads else f"runs in {kernel.threads} threads, launched with {threads}"


def _layout(kernel: KernelVariant | OperationKernel) -> tuple[dict[str, tuple[str, int, int]], int]:
    """(type, offset, bytes) of each argument by name, as C lays them out, and where the last one ends."""
    from dsv4_kernels.aot import argument_types

    at, found = 0, {}
    for name, type_ in argument_types(kernel).items():
        kind = "pointer" if type_.startswith("*") else type_
        size = SIZES[kind]
        at = -(-at // size) * size
        found[name] = kind, at, size
        at += size
    return found, at


def _told(argument: tuple[str, int, int] | None) -> str:
    return "absent" if argument is None else f"{argument[0]} at {argument[1]}"


@cache
def _shipped() -> dict[str, KernelVariant | OperationKernel]:
    from dsv4_kernels.aot import everything

    return {kernel.name: kernel for kernel in everything()}
