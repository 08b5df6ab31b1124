"""Known answers of the operations on main KV rows: patterns of exact codes under power-of-two scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dsv4_kernels.formats import E2M1_MAGNITUDES
from dsv4_kernels.kv_layout import ROPE_WIDTH, V4, V41_FP4, V41_INTERLEAVED, WIDTH, KVLayout
from dsv4_kernels.kv_pool import KVPool

if TYPE_CHECKING:
    from dsv4_kernels.implementation import Implementation

LAYOUTS = (V4, V41_INTERLEAVED, V41_FP4)
"""Every code and both arrangements."""

PAGES, PAGE_ROWS = 3, 2
EXPONENT = 3


def pattern(of: KVLayout, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """float32 [512], the codes of its values, and the scale byte of each group when multiplied by 2^EXPONENT.

    No value is zero, whose sign a rotation could lose; each group holds its largest magnitude.
    """
    d = torch.arange(WIDTH, device=device)
    negative = d % 3 == 0
    if of.code == "e2m1":
        code = 1 + d % 7
        value = torch.tensor(E2M1_MAGNITUDES, device=device)[code]
        return torch.where(negative, -value, value), code + 8 * negative, (EXPONENT + 7) << 3
    # A group of amax 2^e has the scale 2^(e - 8), so its codes are 2^8, 2^7, 2^6 and 2^5.
    value = torch.exp2(-(d % 4).float())
    return torch.where(negative, -value, value), 0x78 - 8 * (d % 4) + 0x80 * negative, 127 + EXPONENT - 8


def turned(x: Tensor, sign: int) -> Tensor:
    """After a quarter turn: (a, b) becomes (-b, a) in the last 64; `sign` is the bit that negates a code."""
    out = x.clone()
    out[-ROPE_WIDTH::2] = x[-ROPE_WIDTH + 1 :: 2] ^ sign
    out[-ROPE_WIDTH + 1 :: 2] = x[-ROPE_WIDTH::2]
    return out


def _data(of: KVLayout, codes: Tensor, plain: Tensor) -> Tensor:
    """uint8 [data_bytes] of a row's codes; `plain` int16 [64] are the bits of its bf16 values."""
    if of.code == "e2m1":
        return (codes[0::2] | (codes[1::2] << 4)).to(torch.uint8)
    data = codes[: of.coded].to(torch.uint8)
    return torch.cat([data, plain.view(torch.uint8)]) if of.plain_rope else data


def expected(
    of: KVLayout, rows: list[tuple[int, Tensor, Tensor]], scale: int, device: torch.device, page_rows: int = PAGE_ROWS
) -> Tensor:
    """The pages in which only `rows` (slot, codes, bits of plain values) were stored."""
    size = of.page_bytes(page_rows)
    pages = torch.zeros(PAGES * size, dtype=torch.uint8, device=device)
    for slot, codes, plain in rows:
        at = torch.tensor([slot], device=device)
        pages[of.data_offsets(at, page_rows, size)[0]] = _data(of, codes, plain)
        pages[of.scale_offsets(at, page_rows, size)[0, : of.coded // of.group]] = scale
    return pages.view(PAGES, size)


def far_slot(page_rows: int) -> int:
    """The second row of the last page."""
    return (PAGES - 1) * page_rows + 1


def store(backend: Implementation, device: torch.device, of: KVLayout, page_rows: int) -> str:
    """Rows of bfloat16 into a far slot, none, and the first."""
    far = far_slot(page_rows)
    value, codes, scale = pattern(of, device)
    pool = KVPool.allocate(of, page_rows, PAGES, device)
    x = (value * 2.0**EXPONENT).bfloat16()
    backend.store_kv(pool, x.expand(3, WIDTH).contiguous(), torch.tensor([far, -1, 0], device=device))
    plain = x[-ROPE_WIDTH:].view(torch.int16)
    known = expected(of, [(far, codes, plain), (0, codes, plain)], scale, device, page_rows)
    return "" if torch.equal(pool.pages, known) else f"pages of {of.name} differ from the known ones"


def norm_rope_store(
    backend: Implementation,
    device: torch.device,
    of: KVLayout,
    page_rows: int,
    *,
    weights: torch.dtype = torch.bfloat16,
    heads: int = 2,
) -> str:
    """A row of ones has an RMS of one: the norm gives its weights. Position 1 is a quarter turn. 0 heads: no query."""
    far = far_slot(page_rows)
    slots, positions = torch.tensor([far, -1, 0], device=device), torch.tensor([0, 0, 1], device=device)
    cos = torch.tensor([[1.0], [0.0]], device=device).expand(2, ROPE_WIDTH // 2).contiguous()
    value, codes, scale = pattern(of, device)
    pool = KVPool.allocate(of, page_rows, PAGES, device)
    weight = (value * 2.0**EXPONENT).bfloat16()
    query = weight.expand(3, heads, WIDTH).contiguous() if heads else None
    ones = torch.ones(3, WIDTH, dtype=torch.bfloat16, device=device)
    backend.norm_rope_store_kv(pool, ones, weight.to(weights), 0.0, cos, 1.0 - cos, positions, slots, query)
    bits = weight.view(torch.int16)
    after = turned(bits, -(2**15))
    turned_codes = turned(codes, 8 if of.code == "e2m1" else 0x80)
    rows = [(far, codes, bits[-ROPE_WIDTH:]), (0, turned_codes, after[-ROPE_WIDTH:])]
    if not torch.equal(pool.pages, expected(of, rows, scale, device, page_rows)):
        return f"pages of {of.name} differ from the known ones"
    known = torch.stack([bits, bits, after])[:, None].expand(3, heads, WIDTH)
    if query is not None and not torch.equal(query.view(torch.int16), known):
        return "the query after RoPE differs from the known one"
    return ""


def dequantize(
    backend: Implementation, device: torch.device, of: KVLayout, page_rows: int, *dtypes: torch.dtype
) -> str:
    """Stored rows in each of `dtypes`; a slot of -1 and one that nothing was stored to are zeros."""
    far = far_slot(page_rows)
    slots = torch.tensor([far, -1, 0, 1], device=device)
    value, codes, scale = pattern(of, device)
    row = (value * 2.0**EXPONENT).bfloat16()
    plain = row[-ROPE_WIDTH:].view(torch.int16)
    pages = expected(of, [(far, codes, plain), (0, codes, plain)], scale, device, page_rows)
    zero = torch.zeros_like(row)
    known = torch.stack([row, zero, row, zero])
    for dtype in dtypes:
        got = backend.dequantize_kv(KVPool(of, page_rows, pages), slots, dtype)
        if got.dtype != dtype or not torch.equal(got, known.to(dtype)):
            return f"rows of {of.name} differ from the known ones"
    return ""


def _every_layout(ask: Callable[[KVLayout], str]) -> str:
    return next((different for of in LAYOUTS if (different := ask(of))), "")


TESTS: dict[str, Callable[[Implementation, torch.device], str]] = {
    "store_kv": lambda backend, device: _every_layout(lambda of: store(backend, device, of, PAGE_ROWS)),
    "norm_rope_store_kv": lambda backend, device: _every_layout(
        lambda of: norm_rope_store(backend, device, of, PAGE_ROWS)
    ),
    "dequantize_kv": lambda backend, device: _every_layout(
        lambda of: dequantize(backend, device, of, PAGE_ROWS, torch.bfloat16, torch.float32)
    ),
}
