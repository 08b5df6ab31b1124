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

PAGE_ROWS = 2
EXPONENT = 3
SLOTS = (5, -1, 0)


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


def expected(of: KVLayout, rows: list[tuple[int, Tensor, Tensor]], scale: int, device: torch.device) -> Tensor:
    """The pages in which only `rows` (slot, codes, bits of plain values) were stored."""
    size = of.page_bytes(PAGE_ROWS)
    pages = torch.zeros(3 * size, dtype=torch.uint8, device=device)
    for slot, codes, plain in rows:
        at = torch.tensor([slot], device=device)
        pages[of.data_offsets(at, PAGE_ROWS, size)[0]] = _data(of, codes, plain)
        pages[of.scale_offsets(at, PAGE_ROWS, size)[0, : of.coded // of.group]] = scale
    return pages.view(3, size)


def _store(backend: Implementation, device: torch.device) -> str:
    slots = torch.tensor(SLOTS, device=device)
    for of in LAYOUTS:
        value, codes, scale = pattern(of, device)
        pool = KVPool.allocate(of, PAGE_ROWS, 3, device)
        x = (value * 2.0**EXPONENT).bfloat16()
        backend.store_kv(pool, x.expand(3, WIDTH).contiguous(), slots)
        plain = x[-ROPE_WIDTH:].view(torch.int16)
        known = expected(of, [(5, codes, plain), (0, codes, plain)], scale, device)
        if not torch.equal(pool.pages, known):
            return f"pages of {of.name} differ from the known ones"
    return ""


def _norm_rope_store(backend: Implementation, device: torch.device) -> str:
    """A row of ones has an RMS of one, so the norm gives its weights; position 1 is a quarter turn."""
    slots, positions = torch.tensor(SLOTS, device=device), torch.tensor([0, 0, 1], device=device)
    cos = torch.tensor([[1.0], [0.0]], device=device).expand(2, ROPE_WIDTH // 2).contiguous()
    for of in LAYOUTS:
        value, codes, scale = pattern(of, device)
        pool = KVPool.allocate(of, PAGE_ROWS, 3, device)
        weight = (value * 2.0**EXPONENT).bfloat16()
        query = weight.expand(3, 2, WIDTH).contiguous()
        ones = torch.ones(3, WIDTH, dtype=torch.bfloat16, device=device)
        backend.norm_rope_store_kv(pool, ones, weight, 0.0, cos, 1.0 - cos, positions, slots, query)
        bits = weight.view(torch.int16)
        after = turned(bits, -(2**15))
        rows = [
            (5, codes, bits[-ROPE_WIDTH:]),
            (0, turned(codes, 8 if of.code == "e2m1" else 0x80), after[-ROPE_WIDTH:]),
        ]
        if not torch.equal(pool.pages, expected(of, rows, scale, device)):
            return f"pages of {of.name} differ from the known ones"
        known = torch.stack([bits, bits, after])[:, None].expand(3, 2, WIDTH)
        if not torch.equal(query.view(torch.int16), known):
            return "the query after RoPE differs from the known one"
    return ""


def _dequantize(backend: Implementation, device: torch.device) -> str:
    slots = torch.tensor([*SLOTS, 1], device=device)
    for of in LAYOUTS:
        value, codes, scale = pattern(of, device)
        row = (value * 2.0**EXPONENT).bfloat16()
        plain = row[-ROPE_WIDTH:].view(torch.int16)
        pages = expected(of, [(5, codes, plain), (0, codes, plain)], scale, device)
        zero = torch.zeros_like(row)
        known = torch.stack([row, zero, row, zero])
        for dtype in (torch.bfloat16, torch.float32):
            got = backend.dequantize_kv(KVPool(of, PAGE_ROWS, pages), slots, dtype)
            if got.dtype != dtype or not torch.equal(got, known.to(dtype)):
                return f"rows of {of.name} differ from the known ones"
    return ""


TESTS: dict[str, Callable[[Implementation, torch.device], str]] = {
    "store_kv": _store,
    "norm_rope_store_kv": _norm_rope_store,
    "dequantize_kv": _dequantize,
}
