"""What AITER's kernels take in silence and compute wrongly, or not at all: refused here with a message."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.layout import SPLIT8, SPLIT64
from dsv4_kernels.pool import IndexPool, IndexSpec

PAGES = 1 << 20
"""Pages of 4,096 payload bytes below 4 GiB: AITER's offsets are 32 bits wide."""

INPUTS = (torch.bfloat16, torch.float16)


def require_spec(spec: IndexSpec, *, rowgroup: bool = False) -> None:
    """Its row-group kernel reads pages of 8 slots too, the others only pages of 64."""
    accepted = (SPLIT64, SPLIT8) if rowgroup else (SPLIT64,)
    if spec.layout not in accepted:
        told = " or ".join(repr(of.name) for of in accepted)
        raise ArgumentError("spec.layout", repr(spec.layout.name), f"{told} on the aiter backend")
    if spec.convention.name != "aiter":
        raise ArgumentError("spec.convention", repr(spec.convention.name), "'aiter' on the aiter backend")


def require_pool(pool: IndexPool, *, rowgroup: bool = False) -> None:
    """AITER reads no page strides, and but for row groups no offsets past 4 GiB."""
    require_spec(pool.spec, rowgroup=rowgroup)
    if not (pool.payload.is_contiguous() and pool.scale.is_contiguous()):
        strides = [pool.payload_stride, pool.scale_stride]
        raise ArgumentError("pool", f"page strides of {strides} B", "dense pages on the aiter backend")
    if pool.pages > PAGES and not rowgroup:
        raise ArgumentError("pool.pages", pool.pages, f"at most {PAGES} on the aiter backend")


def require_dtype(name: str, value: Tensor, accepted: Sequence[torch.dtype]) -> None:
    if value.dtype not in accepted:
        told = " or ".join(str(d) for d in accepted)
        raise ArgumentError(f"{name}.dtype", value.dtype, f"{told} on the aiter backend")


def require_contiguous(name: str, value: Tensor) -> None:
    if not value.is_contiguous():
        raise ArgumentError(f"{name}.stride", list(value.stride()), "a contiguous tensor on the aiter backend")
