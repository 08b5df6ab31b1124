"""Bytes of a stored row, by format. Numbers only, so that a plan needs no torch; tests hold them to `dsv4_kernels`."""

from __future__ import annotations

from dataclasses import dataclass

PAGE_TOKENS = 256
"""Tokens of context a page; both engines use this one size."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Rows of `row_bytes`, padded page by page to a multiple of `page_align`."""

    name: str
    row_bytes: int
    page_align: int

    def page_bytes(self, rows: int) -> int:
        """Bytes of one page of one layer that holds `rows` rows."""
        return -(-rows * self.row_bytes // self.page_align) * self.page_align

    def bytes_per_row(self, rows: int) -> float:
        """Bytes of one row in a page of `rows`, its share of the padding included."""
        return self.page_bytes(rows) / rows


V4 = RowFormat("v4", 584, 576)
V41 = RowFormat("v41", 528, 512)
V41_FP4 = RowFormat("v41_fp4", 288, 256)
BF16 = RowFormat("bf16", 1024, 1)
MAIN = {"v4": V4, "v41": V41, "bf16": BF16}


@dataclass(frozen=True, slots=True)
class IndexFormat:
    """Bytes of one index key of 128 values: payload and scales."""

    name: str
    payload: int
    scale: int

    @property
    def bytes_per_key(self) -> int:
        return self.payload + self.scale


INDEX = {
    "fp4": IndexFormat("fp4", 64, 4),
    "fp8": IndexFormat("fp8", 128, 4),
    "bf16": IndexFormat("bf16", 256, 0),
}


def compressed_format(main: RowFormat, ratio: int) -> RowFormat:
    """The format of compressed rows beside `main`: V4.1 stores the latents of ratios 1 and 2 in FP4."""
    return V41_FP4 if main is V41 and ratio in (1, 2) else main
