"""Where each byte of a main KV row lies in a page: named layouts, and the only file that knows these addresses.

A row is 512 values, the last 64 turned by RoPE. Slot `s` of a pool is row `o = s % n` of page `s // n`, `n` rows a
page. Block-split pages keep the data of all rows together and the scales behind them, padded to a multiple of `align`;
interleaved pages keep a row's scales behind its data. Equal sizes hide a wrong arrangement: both sides hold the name.

v4 (584 B): 448 values as e4m3, an e8m0 scale for each 64, a byte of padding, then the RoPE values in bf16. Pages are
padded to a multiple of 576 B: 37,440 B for n = 64 (585 B a row), 1,728 B for n = 2 (864 B a row).

    | o=0: 448 e4m3, 64 bf16 (576 B) | o=1: 576 B | .. o=n-1 || o=0: 7 e8m0, 1 zero (8 B) | o=1: 8 B | .. || padding |
      o*576 + i, o*576 + 448 + 2*i                              n*576 + o*8 + g

v4_interleaved (584 B, no padding):

    | o=0: 448 e4m3, 64 bf16, 7 e8m0, 1 zero (584 B) | o=1: 584 B | ..       o*584 + i, o*584 + 576 + g

v41 (528 B): 512 values as e4m3, RoPE values too, an e8m0 scale for each 32. Padded to a multiple of 512 B.

    | o=0: 512 e4m3 | o=1: 512 e4m3 | .. o=n-1 || o=0: 16 e8m0 | o=1: 16 e8m0 | .. || padding |
      o*512 + i                                   n*512 + o*16 + g

v41_interleaved (528 B, no padding; SGLang's `v41_new`):

    | o=0: 512 e4m3, 16 e8m0 (528 B) | o=1: 528 B | ..                       o*528 + i, o*528 + 512 + g

v41_fp4 (288 B): 512 values as e2m1, two a byte with the even one in the low nibble, an e4m3 scale for each 16. Padded
to a multiple of 256 B.

    | o=0: 256 pairs | o=1: 256 pairs | .. o=n-1 || o=0: 32 e4m3 | o=1: 32 e4m3 | .. || padding |
      o*256 + i // 2                                n*256 + o*32 + g

v41_fp4_interleaved (288 B, no padding; SGLang's `v41_fp4_new`):

    | o=0: 256 pairs, 32 e4m3 (288 B) | o=1: 288 B | ..                      o*288 + i // 2, o*288 + 256 + g

Source: SGLang 0.5.23's published layouts of the V4 and V4.1 pools; it has no interleaved V4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dsv4_kernels.errors import LayoutMismatchError

WIDTH = 512
ROPE_WIDTH = 64

Code = Literal["e4m3", "e2m1"]


@dataclass(frozen=True, slots=True)
class KVLayout:
    """A named row of main KV: how its values are coded, and how rows stand in a page.

    `group` values share a scale: e8m0 for e4m3 codes, e4m3 for e2m1 codes. `plain_rope`: the 64 RoPE values are bf16
    and have no scale. A page is a multiple of `align` bytes.
    """

    name: str
    code: Code
    group: int
    data_bytes: int
    scale_bytes: int
    align: int
    interleaved: bool = False
    plain_rope: bool = False

    @property
    def bytes_per_row(self) -> int:
        """Bytes of data and scales, without the page's padding."""
        return self.data_bytes + self.scale_bytes

    @property
    def coded(self) -> int:
        """Values of a row, from its first, that are stored as codes."""
        return WIDTH - ROPE_WIDTH if self.plain_rope else WIDTH

    @property
    def row_stride(self) -> int:
        """Bytes from the data of one row to the next."""
        return self.bytes_per_row if self.interleaved else self.data_bytes

    @property
    def scale_stride(self) -> int:
        """Bytes from the scales of one row to the next."""
        return self.bytes_per_row if self.interleaved else self.scale_bytes

    def scale_base(self, page_rows: int) -> int:
        """Where the scales of a page's first row begin."""
        return self.data_bytes if self.interleaved else page_rows * self.data_bytes

    def page_bytes(self, page_rows: int) -> int:
        """Bytes of a page of `page_rows` rows, padding included."""
        return -(-page_rows * self.bytes_per_row // self.align) * self.align

    def data_offsets(self, slots: Tensor, page_rows: int, page_stride: int) -> Tensor:
        """int64 [n, data_bytes]: byte offsets of slots int64 [n] in pages `page_stride` bytes apart."""
        page, o = slots // page_rows, slots % page_rows
        byte = torch.arange(self.data_bytes, device=slots.device)
        return (page * page_stride + o * self.row_stride)[:, None] + byte

    def scale_offsets(self, slots: Tensor, page_rows: int, page_stride: int) -> Tensor:
        """int64 [n, scale_bytes], as `data_offsets`."""
        page, o = slots // page_rows, slots % page_rows
        byte = torch.arange(self.scale_bytes, device=slots.device) + self.scale_base(page_rows)
        return (page * page_stride + o * self.scale_stride)[:, None] + byte

    def require_same(self, other: KVLayout) -> None:
        """Raise LayoutMismatchError unless `other` is this layout."""
        if self != other:
            raise LayoutMismatchError(f"KV layout {other.name!r} used where the pool holds {self.name!r}")


V4 = KVLayout("v4", "e4m3", 64, 576, 8, align=576, plain_rope=True)
V4_INTERLEAVED = KVLayout("v4_interleaved", "e4m3", 64, 576, 8, align=584, interleaved=True, plain_rope=True)
V41 = KVLayout("v41", "e4m3", 32, 512, 16, align=512)
V41_INTERLEAVED = KVLayout("v41_interleaved", "e4m3", 32, 512, 16, align=528, interleaved=True)
V41_FP4 = KVLayout("v41_fp4", "e2m1", 16, 256, 32, align=256)
V41_FP4_INTERLEAVED = KVLayout("v41_fp4_interleaved", "e2m1", 16, 256, 32, align=288, interleaved=True)

KV_LAYOUTS: dict[str, KVLayout] = {
    x.name: x for x in (V4, V4_INTERLEAVED, V41, V41_INTERLEAVED, V41_FP4, V41_FP4_INTERLEAVED)
}


def kv_layout(name: str) -> KVLayout:
    """The KV layout of that name. Raises ValueError that lists the known names."""
    if name not in KV_LAYOUTS:
        raise ValueError(f"kv_layout={name!r}: accepted is one of {', '.join(KV_LAYOUTS)}")
    return KV_LAYOUTS[name]
