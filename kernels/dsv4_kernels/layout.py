"""Where each byte of an index key lies: the only file that knows a byte address.

A compressed token's key is 128 values. In FP4 that is 64 bytes of code pairs (payload) and 4 scale bytes, 68
B however they are arranged; equal sizes hide a wrong arrangement, so a `Layout` is a named value that writer
and reader must share.

Slot `s` of a pool is slot `o = s % page_slots` of page `s // page_slots`. `j` is a payload byte 0..63
(elements 2j and 2j + 1), `c = j // 16` its group of 32 elements.

split64 (SGLang and AITER on gfx950): two tensors, 64 slots a page.

    payload [pages, 1, 4, 64, 16]      group 0             group 1            group 2 ...
                                      | o=0 | o=1 | .. 63 | o=0 | o=1 | .. 63 |
                                       16 B  16 B                               c*1024 + o*16 + j%16
    scale   [pages, 1, 4, 64]         | 0 16 32 48 | 1 17 33 49 | .. | 15 31 47 63 |   next group ...
                                       c*64 + (o%16)*4 + o//16

fp8 (one tensor, 64 slots a page, 132 B a token): rows first, then scales, as SGLang's fused FP8 pages.

    pages [pages, 8448]   | o=0: 128 e4m3 | o=1: 128 e4m3 | .. o=63 || o=0: fp32 | o=1: fp32 | .. o=63 |
                            o*128 + i                                 8192 + o*4

bf16 (256 B a token) and float32 (512 B, for numerical triage only): plain rows.

    payload [pages, 64, 128]   | o=0: 128 values | o=1: 128 values | ..
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from dsv4_kernels.errors import LayoutMismatchError

HEAD_DIM = 128
GROUPS = 4

Format = Literal["fp4", "fp8", "bf16", "float32"]
InPage = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a pool: `[pages, *shape]` of `dtype`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes_per_page(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """A named arrangement of index keys in pages.

    `payload_at(o, j)` and `scale_at(o, c)` are byte offsets inside one page of the tensor that holds them
    (the first holds the payload, the last the scales; they may be the same tensor). Formats without scales
    have `scale_bytes` 0.
    """

    name: str
    format: Format
    page_slots: int
    payload_bytes: int
    scale_bytes: int
    tensors: tuple[TensorSpec, ...]
    payload_at: InPage = field(compare=False, repr=False)
    scale_at: InPage = field(compare=False, repr=False)

    @property
    def bytes_per_token(self) -> int:
        return self.payload_bytes + self.scale_bytes

    @property
    def payload_spec(self) -> TensorSpec:
        return self.tensors[0]

    @property
    def scale_spec(self) -> TensorSpec:
        return self.tensors[-1]

    def payload_offsets(self, slots: Tensor) -> Tensor:
        """int64 [n, payload_bytes]: byte offsets in the payload tensor of slots int64 [n]."""
        page, o = slots // self.page_slots, slots % self.page_slots
        j = torch.arange(self.payload_bytes, device=slots.device)
        return (page * self.payload_spec.bytes_per_page)[:, None] + self.payload_at(o[:, None], j)

    def scale_offsets(self, slots: Tensor) -> Tensor:
        """int64 [n, scale_bytes]: byte offsets in the tensor that holds the scales."""
        page, o = slots // self.page_slots, slots % self.page_slots
        c = torch.arange(self.scale_bytes, device=slots.device)
        return (page * self.scale_spec.bytes_per_page)[:, None] + self.scale_at(o[:, None], c)

    def require_same(self, other: Layout) -> None:
        """Raise LayoutMismatchError unless `other` is this layout."""
        if self != other:
            raise LayoutMismatchError(f"layout {other.name!r} used where the pool holds {self.name!r}")


def _rows(row_bytes: int, base: int = 0) -> InPage:
    return lambda o, j: base + o * row_bytes + j


SPLIT64 = Layout(
    "split64",
    "fp4",
    64,
    64,
    4,
    (TensorSpec("payload", (1, 4, 64, 16), torch.uint8), TensorSpec("scale", (1, 4, 64), torch.uint8)),
    lambda o, j: j // 16 * 1024 + o * 16 + j % 16,
    lambda o, c: c * 64 + o % 16 * 4 + o // 16,
)
FP8 = Layout("fp8", "fp8", 64, 128, 4, (TensorSpec("pages", (64 * 132,), torch.uint8),), _rows(128), _rows(4, 64 * 128))
BF16 = Layout("bf16", "bf16", 64, 256, 0, (TensorSpec("payload", (64, 128), torch.bfloat16),), _rows(256), _rows(0))
FLOAT32 = Layout(
    "float32", "float32", 64, 512, 0, (TensorSpec("payload", (64, 128), torch.float32),), _rows(512), _rows(0)
)

LAYOUTS: dict[str, Layout] = {x.name: x for x in (SPLIT64, FP8, BF16, FLOAT32)}


def layout(name: str) -> Layout:
    """The layout of that name. Raises ValueError that lists the known names."""
    if name not in LAYOUTS:
        raise ValueError(f"layout={name!r}: accepted is one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


@cache
def page_offsets(of: Layout, device: torch.device) -> tuple[Tensor, Tensor]:
    """int64 offsets inside one page, in token order: payload in units of 16 bytes [page_slots * 4], scales
    [page_slots * 4].

    Every FP4 layout keeps the 16 payload bytes of a group together, so a reader may move 16 bytes at a time.
    """
    o = torch.arange(of.page_slots, device=device)[:, None]
    c = torch.arange(GROUPS, device=device)
    return (of.payload_at(o, c * 16) // 16).reshape(-1), of.scale_at(o, c).reshape(-1)
