"""Index keys from one FP4 layout into another, byte for byte: a slot keeps its number, its codes and its scales."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import check
from dsv4_kernels.errors import ArgumentError, LayoutMismatchError
from dsv4_kernels.pool import IndexPool
from dsv4_kernels.reference.page_bytes import read_bytes, write_bytes

SLOTS_AT_ONCE = 1 << 16
"""Bounds the index tensors of a step to some 70 MiB."""


def convert(source: IndexPool, target: IndexPool, slots: Tensor | None = None) -> None:
    """Copy `slots` (int64 [n], all of the source's by default) from `source` into `target`, whose layout may differ.

    Raises LayoutMismatchError where the keys themselves would mean something else (format, convention, rotation),
    ArgumentError where the target is on another device or too small.
    """
    target.spec.require_query(source.spec)
    if source.spec.layout.format != "fp4":
        raise LayoutMismatchError(f"layout {source.spec.layout.name!r}: only FP4 layouts convert into each other")
    if source.device != target.device:
        raise ArgumentError("target.device", target.device, str(source.device))
    if slots is None:
        slots = torch.arange(source.tokens, device=source.device)
    check.tensor("slots", slots, (torch.int64,), (None,), source.device)
    check.within("slots", slots, 0, min(source.tokens, target.tokens) - 1)
    for part in slots.split(SLOTS_AT_ONCE):  # type: ignore[no-untyped-call]
        write_bytes(target, part, *read_bytes(source, part))
