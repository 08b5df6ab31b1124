"""Validation of kernel arguments. Each failure is an ArgumentError that names the argument, its value and
what is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dsv4_kernels.errors import ArgumentError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def tensor(
    name: str,
    value: Tensor,
    dtypes: Sequence[torch.dtype],
    shape: Sequence[int | None],
    device: torch.device,
) -> Tensor:
    """`value` if it has one of `dtypes`, `shape` (None: any size), `device`, and a last stride of 1."""
    found = device_of(name, value)
    if value.dtype not in dtypes:
        raise ArgumentError(f"{name}.dtype", value.dtype, " or ".join(str(d) for d in dtypes))
    fits = value.ndim == len(shape) and all(w is None or w == g for w, g in zip(shape, value.shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if w is None else str(w) for w in shape)
        raise ArgumentError(f"{name}.shape", list(value.shape), f"[{wanted}]")
    if found != device:
        raise ArgumentError(f"{name}.device", found, str(device))
    if value.ndim and value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ArgumentError(f"{name}.stride", list(value.stride()), "a last stride of 1")
    return value


def device_of(name: str, value: Tensor) -> torch.device:
    """The device of the argument that says where a call runs."""
    if not isinstance(value, Tensor):
        raise ArgumentError(name, type(value).__name__, "a torch.Tensor")
    return value.device


def dense(name: str, value: Tensor) -> None:
    """`value` is contiguous."""
    if not value.is_contiguous():
        raise ArgumentError(f"{name}.stride", list(value.stride()), "contiguous")


def within(name: str, value: Tensor, low: int, high: int) -> None:
    """Every element lies in `low..high`. Read on the CPU only: on a GPU it would stall the stream.

    There the kernels of logits, main KV rows and compressors skip or bound what is outside; those of index keys,
    queries, selection and schedules trust their caller.
    """
    if value.device.type != "cpu" or not value.numel():
        return
    least, most = torch.aminmax(value)
    if int(least) < low or int(most) > high:
        raise ArgumentError(name, f"{int(least)}..{int(most)}", f"{low}..{high}")


def integer(name: str, value: int, low: int, high: int | None = None) -> None:
    """`value` is an int of at least `low`, at most `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        raise ArgumentError(name, repr(value), f"an integer >= {low}" if high is None else f"an integer {low}..{high}")


def finite(name: str, value: float, least: float | None = None) -> None:
    """`value` is a finite number, of at least `least`."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not known or (least is not None and value < least):
        raise ArgumentError(name, value, "a finite number" if least is None else f"a finite number >= {least:g}")


def one_of(name: str, value: object, accepted: Sequence[object]) -> None:
    if value not in accepted:
        raise ArgumentError(name, repr(value), " or ".join(str(a) for a in accepted))
