"""Main KV pages: one row of 512 values a (compressed) token, in the V4 row or in plain floats.

The V4 row is 584 bytes: 448 values without RoPE as e4m3 with one e8m0 scale for each 64, then 64 RoPE values in
bf16. A page keeps the data of its rows together and the scales behind them (block-split), padded to a multiple of
576 bytes:

    | row 0: 448 e4m3, 64 bf16 (576 B) | row 1 | ... | row n-1 | row 0: 7 e8m0, 1 pad (8 B) | ... | row n-1 | padding |

With 64 rows (a C4 page of 256 tokens) that is 37,440 B, 585 B a row; with 2 rows (C128) 1,728 B, 864 B a row.
Source: SGLang 0.5.23's published layout of the V4 pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

KVFormat = Literal["v4", "bf16", "float32"]

WIDTH = 512
NOPE = 448
GROUP = 64
GROUPS = NOPE // GROUP
DATA_BYTES = NOPE + 2 * (WIDTH - NOPE)
SCALE_BYTES = 8
PAGE_ALIGN = 576
_MIN_SCALE_BYTE = 114  # 2^-13, the power of two above 1e-4
_SIGN_AND_CODE = -0x78100000  # bit 31 and bits 20 to 26
_PLAIN_DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}


def encode_v4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise float32 rows [n, 512] to data uint8 [n, 576] and scales uint8 [n, 8].

    The scale is the smallest power of two s >= 2^-13 with amax / s <= 448, so codes never saturate; the e4m3
    rounding is to nearest even. A group with a NaN or an infinity has scale byte 255 and decodes to NaN.
    """
    groups = rows[:, :NOPE].reshape(-1, GROUPS, GROUP)
    byte = _scale_bytes(groups)
    codes = _codes(groups, byte).view(torch.uint8).view(-1, NOPE)
    tail = rows[:, NOPE:].to(torch.bfloat16).view(torch.uint8).view(-1, DATA_BYTES - NOPE)
    scales = torch.zeros(rows.shape[0], SCALE_BYTES, dtype=torch.uint8, device=rows.device)
    scales[:, :GROUPS] = byte.to(torch.uint8)
    return torch.cat([codes, tail], 1), scales


def decode_v4(data: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The float32 values [n, 512] of data uint8 [n, 576] and scales uint8 [n, 8]; exact."""
    codes = data[:, :NOPE].contiguous().view(torch.int8).view(-1, GROUPS, GROUP)
    nope = _values(codes, scales[:, :GROUPS].to(torch.int32)).view(-1, NOPE)
    tail = data[:, NOPE:].contiguous().view(torch.bfloat16).float()
    return torch.cat([nope, tail], 1)


def round_trip(kv_format: KVFormat, rows: torch.Tensor) -> torch.Tensor:
    """What `KVPages.write` then `read` makes of float32 rows [n, 512]."""
    if kv_format != "v4":
        return rows.to(_PLAIN_DTYPES[kv_format]).float()
    groups = rows[:, :NOPE].reshape(-1, GROUPS, GROUP)
    byte = _scale_bytes(groups)
    nope = _values(_codes(groups, byte).view(torch.int8), byte)
    return torch.cat([nope.view(-1, NOPE), rows[:, NOPE:].to(torch.bfloat16).float()], 1)


def _scale_bytes(groups: torch.Tensor) -> torch.Tensor:
    """The e8m0 byte of each group [n, 7, 64], int32 [n, 7]; 255 where a value is not finite."""
    # Of a maximum that is NaN torch promises no sign.
    amax_bits = groups.abs().amax(-1).abs_().view(torch.int32)
    # 448 = 1.75 * 2^8: the exponent of the ceiling moves up when the mantissa exceeds .75.
    byte = (amax_bits >> 23) - 8 + ((amax_bits & 0x7FFFFF) > 0x600000)
    return byte.clamp_(min=_MIN_SCALE_BYTE).masked_fill_(amax_bits >= 0x7F800000, 255)


def _codes(groups: torch.Tensor, byte: torch.Tensor) -> torch.Tensor:
    """Groups divided by their scales, as e4m3."""
    inverse = ((254 - byte).clamp_(min=0) << 23).view(torch.float32)
    return (groups * inverse.unsqueeze(-1)).to(torch.float8_e4m3fn)


def _values(codes: torch.Tensor, byte: torch.Tensor) -> torch.Tensor:
    """float32 values of e4m3 codes (int8 [n, 7, 64]) under scale bytes int32 [n, 7]."""
    # The sign-extended byte, moved under float32's exponent without the copies of its sign, is the e4m3 value times
    # 2^-120, denormals included. Code 127 (NaN) needs no care: it is written only under scale 255.
    bits = codes.to(torch.int32).bitwise_left_shift_(20).bitwise_and_(_SIGN_AND_CODE)
    # Byte 255 is the NaN of e8m0 (a group that held NaN or infinity): shift 255 alone would give infinity.
    scale = (byte << 23).view(torch.float32).masked_fill_(byte == 255, torch.nan)
    return bits.view(torch.float32).mul_(2.0**120).mul_(scale.unsqueeze(-1))


def page_bytes(kv_format: KVFormat, rows_per_page: int) -> int:
    """Bytes of one page of one layer."""
    if kv_format == "v4":
        raw = rows_per_page * (DATA_BYTES + SCALE_BYTES)
        return -(-raw // PAGE_ALIGN) * PAGE_ALIGN
    return rows_per_page * WIDTH * _PLAIN_DTYPES[kv_format].itemsize


@dataclass(frozen=True)
class KVPages:
    """The paged rows of one layer: `buffer` uint8 [pages, page_bytes]; slot = page * rows_per_page + row."""

    kv_format: KVFormat
    rows_per_page: int
    buffer: torch.Tensor

    width = WIDTH

    @classmethod
    def allocate(
        cls, kv_format: KVFormat, rows_per_page: int, pages: int, device: torch.device | str = "cpu"
    ) -> KVPages:
        """Zeroed pages."""
        size = page_bytes(kv_format, rows_per_page)
        return cls(kv_format, rows_per_page, torch.zeros(pages, size, dtype=torch.uint8, device=device))

    def write(self, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Store float32 rows [n, 512] at int64 slots [n]."""
        if self.kv_format == "v4":
            data, scales = self._v4_places(slots)
            self.buffer.view(-1, DATA_BYTES)[data], self.buffer.view(-1, SCALE_BYTES)[scales] = encode_v4(rows)
        else:
            self._plain()[slots] = rows.to(_PLAIN_DTYPES[self.kv_format])

    def read(self, slots: torch.Tensor) -> torch.Tensor:
        """The float32 rows [n, 512] at int64 slots [n]."""
        if self.kv_format == "v4":
            data, scales = self._v4_places(slots)
            return decode_v4(
                self.buffer.view(-1, DATA_BYTES).index_select(0, data),
                self.buffer.view(-1, SCALE_BYTES).index_select(0, scales),
            )
        return self._plain().index_select(0, slots).float()

    def _v4_places(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where rows lie when the buffer is seen as data rows, and their scales when it is seen as scale rows.

        Both views are whole: a page is a multiple of 576 bytes.
        """
        page, row = slots // self.rows_per_page, slots % self.rows_per_page
        size = self.buffer.shape[1]
        scales = page * (size // SCALE_BYTES) + self.rows_per_page * (DATA_BYTES // SCALE_BYTES) + row
        return page * (size // DATA_BYTES) + row, scales

    def _plain(self) -> torch.Tensor:
        return self.buffer.view(_PLAIN_DTYPES[self.kv_format]).view(-1, WIDTH)
