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

split128 (AITER with pages of 128): the same with four equal token groups of 32 in the scales.

    payload [pages, 1, 4, 128, 16]    c*2048 + o*16 + j%16
    scale   [pages, 1, 4, 128]        | 0 32 64 96 | 1 33 65 97 | .. |   c*128 + (o%32)*4 + o//32

split8 (AITER row groups, SGLang V4.1): two tensors, 8 slots a page; a lane's 32 bytes are tokens t and t + 4
of one group.

    payload [pages, 1, 4, 4, 2, 16]   | t=0 c=0: o=0, o=4 | t=0 c=1: o=0, o=4 | .. | t=3 c=3: o=3, o=7 |
                                       ((o%4)*4 + c)*32 + (o//4)*16 + j%16
    scale   [pages, 1, 4, 8]          c*8 + o

fused_cuda (SGLang on NVIDIA): one tensor, 64 slots a page, rows first, then scales.

    pages [pages, 4352]               | o=0: 64 B | o=1: 64 B | .. o=63 || o=0: 4 B | .. o=63 |

record68, record68_n16, record68_p128 (vLLM with AITER's Gluon kernels): one tensor like fused_cuda, but every
run of n tokens is stored in operand order. n = 32 from 32 heads on, else 16; L = 64 / n scale lanes; pages of
64 or 128 slots.

    pages [pages, slots * 68]         | run 0: c=0 of n tokens, c=1 of n tokens, .. | run 1 .. || scales, run by run |
                                       (o//n)*n*64 + c*n*16 + (o%n)*16 + j%16
                                       slots*64 + (o//n)*n*4 + (c%L)*n*4/L + (o%n)*4/L + c//L

fp8 (one tensor, 64 slots a page, 132 B a token): rows first, then scales, as SGLang's fused FP8 pages.

    pages [pages, 8448]   | o=0: 128 e4m3 | o=1: 128 e4m3 | .. o=63 || o=0: fp32 | o=1: fp32 | .. o=63 |
                            o*128 + i                                 8192 + o*4

bf16 (256 B a token) and float32 (512 B, for numerical triage only): plain rows.

    payload [pages, 64, 128]   | o=0: 128 values | o=1: 128 values | ..
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from dsv4_kernels.errors import LayoutMismatchError

HEAD_DIM = 128
GROUPS = 4

Format = Literal["fp4", "fp8", "bf16", "float32"]


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
class PayloadOrder:
    """Byte `j` of slot `o` is `o // run * run_stride + o % run * slot_stride + j // 16 * group_stride + j % 16`."""

    slot_stride: int
    group_stride: int = 16
    run: int = 1 << 20
    run_stride: int = 0

    def at(self, o: Tensor, j: Tensor) -> Tensor:
        rows = o // self.run * self.run_stride + o % self.run * self.slot_stride
        return rows + j // 16 * self.group_stride + j % 16


@dataclass(frozen=True, slots=True)
class ScaleOrder:
    """Where the scale of group `c` of slot `o` lies in a page.

    `base + o // run * run_stride + o % run * slot_stride + c % lanes * lane_stride + c // lanes`
    """

    slot_stride: int
    lane_stride: int
    base: int = 0
    lanes: int = GROUPS
    run: int = 1 << 20
    run_stride: int = 0

    def at(self, o: Tensor, c: Tensor) -> Tensor:
        rows = self.base + o // self.run * self.run_stride + o % self.run * self.slot_stride
        return rows + c % self.lanes * self.lane_stride + c // self.lanes


@dataclass(frozen=True, slots=True)
class Layout:
    """A named arrangement of index keys in pages.

    `payload` and `scale` order the bytes inside one page of the tensor that holds them (the first of `tensors`
    holds the payload, the last the scales; they may be the same). Formats without scales have `scale_bytes` 0.
    """

    name: str
    format: Format
    page_slots: int
    payload_bytes: int
    scale_bytes: int
    tensors: tuple[TensorSpec, ...]
    payload: PayloadOrder
    scale: ScaleOrder = ScaleOrder(0, 0)

    @property
    def bytes_per_token(self) -> int:
        return self.payload_bytes + self.scale_bytes

    @property
    def payload_run(self) -> int:
        """Slots of a page whose payload is one run."""
        return min(self.payload.run, self.page_slots)

    @property
    def scale_run(self) -> int:
        """Slots of a page whose scales are one run."""
        return min(self.scale.run, self.page_slots)

    @property
    def payload_spec(self) -> TensorSpec:
        return self.tensors[0]

    @property
    def scale_spec(self) -> TensorSpec:
        return self.tensors[-1]

    def payload_offsets(self, slots: Tensor, page_stride: int | None = None) -> Tensor:
        """int64 [n, payload_bytes]: byte offsets of slots int64 [n] in the payload tensor.

        `page_stride` is the distance of two pages in bytes, that of a dense pool by default.
        """
        page, o = slots // self.page_slots, slots % self.page_slots
        stride = page_stride or self.payload_spec.bytes_per_page
        j = torch.arange(self.payload_bytes, device=slots.device)
        return (page * stride)[:, None] + self.payload.at(o[:, None], j)

    def scale_offsets(self, slots: Tensor, page_stride: int | None = None) -> Tensor:
        """int64 [n, scale_bytes]: byte offsets in the tensor that holds the scales."""
        page, o = slots // self.page_slots, slots % self.page_slots
        stride = page_stride or self.scale_spec.bytes_per_page
        c = torch.arange(self.scale_bytes, device=slots.device)
        return (page * stride)[:, None] + self.scale.at(o[:, None], c)

    def require_same(self, other: Layout) -> None:
        """Raise LayoutMismatchError unless `other` is this layout."""
        if self != other:
            raise LayoutMismatchError(f"layout {other.name!r} used where the pool holds {self.name!r}")


def _fp4(name: str, slots: int, tensors: tuple[TensorSpec, ...], payload: PayloadOrder, scale: ScaleOrder) -> Layout:
    return Layout(name, "fp4", slots, 64, 4, tensors, payload, scale)


def _pages(bytes_: int) -> tuple[TensorSpec]:
    return (TensorSpec("pages", (bytes_,), torch.uint8),)


def _split(name: str, slots: int) -> Layout:
    payload = TensorSpec("payload", (1, GROUPS, slots, 16), torch.uint8)
    scale = TensorSpec("scale", (1, GROUPS, slots), torch.uint8)
    quarters = ScaleOrder(4, slots, run=slots // 4, run_stride=1)
    return _fp4(name, slots, (payload, scale), PayloadOrder(16, slots * 16), quarters)


def _record68(name: str, slots: int, n: int) -> Layout:
    lanes = 64 // n
    width = GROUPS // lanes
    scale = ScaleOrder(width, n * width, base=slots * 64, lanes=lanes, run=n, run_stride=n * 4)
    return _fp4(name, slots, _pages(slots * 68), PayloadOrder(16, n * 16, run=n, run_stride=n * 64), scale)


SPLIT64 = _split("split64", 64)
SPLIT128 = _split("split128", 128)
SPLIT8 = _fp4(
    "split8",
    8,
    (TensorSpec("payload", (1, 4, GROUPS, 2, 16), torch.uint8), TensorSpec("scale", (1, GROUPS, 8), torch.uint8)),
    PayloadOrder(128, 32, run=4, run_stride=16),
    ScaleOrder(1, 8),
)
FUSED_CUDA = _fp4("fused_cuda", 64, _pages(64 * 68), PayloadOrder(64), ScaleOrder(4, 1, base=64 * 64))
RECORD68 = _record68("record68", 64, 32)
RECORD68_N16 = _record68("record68_n16", 64, 16)
RECORD68_P128 = _record68("record68_p128", 128, 32)
FP8 = Layout("fp8", "fp8", 64, 128, 4, _pages(64 * 132), PayloadOrder(128), ScaleOrder(4, 1, base=64 * 128))
BF16 = Layout("bf16", "bf16", 64, 256, 0, (TensorSpec("payload", (64, 128), torch.bfloat16),), PayloadOrder(256))
FLOAT32 = Layout(
    "float32", "float32", 64, 512, 0, (TensorSpec("payload", (64, 128), torch.float32),), PayloadOrder(512)
)

LAYOUTS: dict[str, Layout] = {
    x.name: x
    for x in (SPLIT64, SPLIT8, SPLIT128, FUSED_CUDA, RECORD68, RECORD68_N16, RECORD68_P128, FP8, BF16, FLOAT32)
}


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
    return (of.payload.at(o, c * 16) // 16).reshape(-1), of.scale.at(o, c).reshape(-1)
