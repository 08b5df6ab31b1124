"""The bytes of a pool by slot, whatever the layout and the distance of its pages."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels.pool import IndexPool


def flat_bytes(pages: Tensor) -> Tensor:
    """uint8 [n]: all bytes from the first page to the end of the last, with what lies between them; a view."""
    of = pages.view(torch.uint8) if pages.dtype != torch.uint8 else pages
    last = (of.shape[0] - 1) * of.stride(0) + of[0].numel()
    return of.as_strided((last,), (1,))


def write_bytes(pool: IndexPool, slots: Tensor, payload: Tensor, scale: Tensor) -> None:
    """Put uint8 `payload` [n, payload_bytes] and `scale` [n, scale_bytes] at int64 `slots` [n]."""
    of = pool.spec.layout
    flat_bytes(pool.payload)[of.payload_offsets(slots, pool.payload_stride)] = payload
    flat_bytes(pool.scale)[of.scale_offsets(slots, pool.scale_stride)] = scale


def read_bytes(pool: IndexPool, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The counterpart of `write_bytes`."""
    of = pool.spec.layout
    payload = flat_bytes(pool.payload)[of.payload_offsets(slots, pool.payload_stride)]
    return payload, flat_bytes(pool.scale)[of.scale_offsets(slots, pool.scale_stride)]
