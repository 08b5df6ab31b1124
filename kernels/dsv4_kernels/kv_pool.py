"""A pool of main KV rows: pages of bytes under a named layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.kv_layout import KVLayout

ALIGNMENT = 8
MOST_ROWS = 2**31 - 1
"""Of a pool: kernels count rows with 32 bits, and only then bytes with 64."""


@dataclass(frozen=True, slots=True)
class KVPool:
    """`pages` uint8 [count, layout.page_bytes(page_rows)]; slot = page * page_rows + row.

    Bytes of a page are adjacent; pages may lie further apart than their size (a pool shared with other layers), by a
    multiple of 8 bytes.
    """

    layout: KVLayout
    page_rows: int
    pages: Tensor

    def __post_init__(self) -> None:
        if isinstance(self.page_rows, bool) or not isinstance(self.page_rows, int) or self.page_rows < 1:
            raise ArgumentError("page_rows", repr(self.page_rows), "an integer >= 1")
        size, t = self.layout.page_bytes(self.page_rows), self.pages
        if t.dtype != torch.uint8 or t.ndim != 2 or t.shape[1] != size or not t.shape[0] or t.stride(1) != 1:
            found = f"{t.dtype} {list(t.shape)} strides {list(t.stride())}"
            raise ArgumentError("pages", found, f"torch.uint8 [pages >= 1, {size}] with dense pages")
        if self.slots > MOST_ROWS:
            raise ArgumentError("pages", f"{self.slots} rows", f"at most {MOST_ROWS}")
        if t.shape[0] > 1 and t.stride(0) < size:
            raise ArgumentError("pages.stride", list(t.stride()), f"pages at least {size} B apart")
        if (t.shape[0] > 1 and t.stride(0) % ALIGNMENT) or t.data_ptr() % ALIGNMENT:
            raise ArgumentError("pages.stride", list(t.stride()), f"pages aligned to {ALIGNMENT} B")

    @classmethod
    def allocate(cls, layout: KVLayout, page_rows: int, pages: int, device: torch.device | str = "cpu") -> KVPool:
        """Zeroed pages."""
        if pages < 1:
            raise ArgumentError("pages", pages, "an integer >= 1")
        size = layout.page_bytes(page_rows)
        return cls(layout, page_rows, torch.zeros(pages, size, dtype=torch.uint8, device=device))

    @property
    def page_stride(self) -> int:
        """Bytes from one page to the next."""
        return self.pages.stride(0)

    @property
    def device(self) -> torch.device:
        return self.pages.device

    @property
    def slots(self) -> int:
        """Rows that the pool can hold."""
        return self.pages.shape[0] * self.page_rows

    @property
    def bytes_per_row(self) -> float:
        """Bytes of a page divided by its rows: padding included."""
        return self.pages.shape[1] / self.page_rows
