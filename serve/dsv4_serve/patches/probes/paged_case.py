"""One case of paged FP4 logits: tensors in AITER's layout, and the exact answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

HEADS, PAGE, CHUNK = 64, 64, 256
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Case:
    """One query row over `context` keys in the pages of `table`; payload uint8 [pages, 1, 4, page, 16].

    Scales stand in the order of AITER's HIP writer: the bytes of a page's tiles of 16 keys side by side.
    """

    payload: Tensor
    scale: Tensor
    table: Tensor
    context: int
    q: Tensor
    q_scale: Tensor
    weights: Tensor

    @property
    def page(self) -> int:
        return self.payload.shape[3]

    def expected(self) -> Tensor:
        """Logits [context] in float64: sum over heads of weight * relu(q . k)."""
        positions = torch.arange(self.context)
        pages, inside = self.table[0, positions // self.page].long(), positions % self.page
        codes = self.payload[pages, 0, :, inside].view(-1, 4, 16)
        place = (inside % 16) * (self.page // 16) + inside // 16
        scales = self.scale[pages, 0][positions, :, place]
        keys = _decode(codes, scales)
        q_scale = self.q_scale.view(4, 16, 4).permute(2, 1, 0).reshape(HEADS, 4)
        queries = _decode(self.q.view(HEADS, 4, 16), q_scale)
        return torch.einsum("hk,h->k", (queries @ keys.T).relu(), self.weights[0].double())


def _decode(codes: Tensor, scales: Tensor) -> Tensor:
    """float64 [n, 128] of byte pairs uint8 [n, 4, 16] (low nibble first) and e8m0 scales uint8 [n, 4]."""
    values = VALUES.double()[torch.stack([codes & 15, codes >> 4], -1).long()].view(-1, 4, 32)
    return (values * torch.exp2(scales.double() - 127).unsqueeze(-1)).view(-1, 128)


def random_case(pools: tuple[Tensor, Tensor], pages: list[int], context: int, columns: int | None = None) -> Case:
    """Fill `pages` of the pools with random keys. The table is a row of `columns` in a wider tensor, if given."""
    draw = torch.Generator().manual_seed(context)

    def bytes_of(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, dtype=torch.uint8, generator=draw)

    payload, scale = pools
    for page in pages:
        payload[page] = bytes_of(0, 256, *payload.shape[1:])
        scale[page] = bytes_of(122, 130, *scale.shape[1:])
    wide = torch.zeros(1, columns or len(pages), dtype=torch.int32)
    wide[0, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
    return Case(
        payload,
        scale,
        wide[:, : len(pages)],
        context,
        bytes_of(0, 256, HEADS, 64),
        bytes_of(122, 130, 4, 16, 4),
        torch.randn(1, HEADS, generator=draw).to(torch.bfloat16),
    )


def dense_pools(pages: int, page: int = PAGE) -> tuple[Tensor, Tensor]:
    return torch.zeros(pages, 1, 4, page, 16, dtype=torch.uint8), torch.zeros(pages, 1, 4, page, dtype=torch.uint8)


def fused_pools(pages: int) -> tuple[Tensor, Tensor]:
    """Both pools as views of one tensor whose pages are records of 4,352 bytes, as SGLang's fused pools are."""
    record = torch.zeros(pages, 4352, dtype=torch.uint8)
    return (
        record.as_strided((pages, 1, 4, PAGE, 16), (4352, 4096, 1024, 16, 1)),
        record.as_strided((pages, 1, 4, PAGE), (4352, 256, 64, 1), 4096),
    )


def error(found: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the mean magnitude; infinite when anything is not a number."""
    if not torch.isfinite(found).all():
        return float("inf")
    return float((found.double() - expected).abs().max() / expected.abs().mean())
