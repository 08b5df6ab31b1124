"""Rows as serving stores them, for training: rounded forwards, as if not rounded backwards."""

import torch
from torch import Tensor

from dsv4_kernels.kv_layout import kv_layout
from dsv4_kernels.reference import kv_rows

WINDOW, ENTRIES = kv_layout("v41"), kv_layout("v41_fp4")


def round_window(rows: Tensor) -> Tensor:
    """Window rows [..., 512] through e4m3 with a power of two for each 32 values."""
    return _RoundTrip.apply(rows, WINDOW.name)  # type: ignore[no-any-return, no-untyped-call]


def round_entries(rows: Tensor) -> Tensor:
    """Compressed rows [..., 512] through e2m1 with an e4m3 scale for each 16 values."""
    return _RoundTrip.apply(rows, ENTRIES.name)  # type: ignore[no-any-return, no-untyped-call]


class _RoundTrip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, rows: Tensor, layout: str) -> Tensor:
        of = kv_layout(layout)
        # The cache holds bfloat16 values' codes, so serving rounds to bfloat16 first.
        flat = rows.to(torch.bfloat16).float().reshape(-1, rows.shape[-1])
        return kv_rows.decode(of, *kv_rows.encode(of, flat)).view(rows.shape).to(rows.dtype)

    @staticmethod
    def backward(ctx: object, *gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[0], None
