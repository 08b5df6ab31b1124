"""Paged logits in float64 from the bytes of queries and pages, written out; and the inputs of the correctness cases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsv4_kernels.pool import IndexPool, IndexSpec, Query

SPEC = IndexSpec(hadamard=False)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""A CPU serves the tests of this script."""
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decoded(packed: Tensor, exponents: Tensor) -> Tensor:
    """float64 [..., 128] of bytes [..., 64] and exponent bytes [..., 4]."""
    values = torch.tensor([*MAGNITUDES, *(-m for m in MAGNITUDES)], dtype=torch.float64, device=packed.device)
    pairs = torch.stack([values[(packed & 15).long()], values[(packed >> 4).long()]], -1).flatten(-2)
    scales = torch.exp2(exponents.double() - 127)
    return (pairs.view(*pairs.shape[:-1], 4, 32) * scales.unsqueeze(-1)).flatten(-2)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes [..., 64] and exponent bytes [..., 4] of [..., 128], scales rounded up to powers of two."""
    groups = x.view(*x.shape[:-1], 4, 32)
    exponent = torch.ceil(torch.log2(groups.abs().amax(-1).clamp(min=1e-30) / 6))
    y = groups / torch.exp2(exponent).unsqueeze(-1)
    steps = torch.tensor(MAGNITUDES, device=x.device)
    code = (y.abs().unsqueeze(-1) - steps).abs().argmin(-1) | ((y < 0).long() << 3)
    code = code.flatten(-2).to(torch.uint8)
    return code[..., 0::2] | (code[..., 1::2] << 4), (exponent + 127).to(torch.uint8)


@dataclass
class Case:
    """Queries, weights, a pool and the bytes they were made of, in token order."""

    query: Query
    weights: Tensor
    pool: IndexPool
    key_bytes: Tensor
    key_exponents: Tensor
    query_exponents: Tensor

    @classmethod
    def normal(cls, rows: int, heads: int, pages: int) -> Case:
        """Normal data over six octaves, quantised as the product does."""
        torch.manual_seed(1)
        octaves = torch.exp2(torch.randint(-3, 3, (pages, 64, 1), device=DEVICE).float())
        queries = quantised(torch.randn(rows, heads, 128, device=DEVICE))
        return cls._of(queries, quantised(torch.randn(pages, 64, 128, device=DEVICE) * octaves))

    @classmethod
    def spread(cls, rows: int, heads: int, pages: int, octaves: int) -> Case:
        """Random codes, every group of 32 with a scale of its own over so many octaves."""
        torch.manual_seed(1)

        def random(*shape: int) -> tuple[Tensor, Tensor]:
            codes = torch.randint(0, 256, (*shape, 64), device=DEVICE, dtype=torch.uint8)
            return codes, torch.randint(127 - octaves, 128, (*shape, 4), device=DEVICE).to(torch.uint8)

        return cls._of(random(rows, heads), random(pages, 64))

    @classmethod
    def _of(cls, queries: tuple[Tensor, Tensor], keys: tuple[Tensor, Tensor]) -> Case:
        (packed, exponents), (key_bytes, key_exponents) = queries, keys
        rows, heads = packed.shape[:2]
        h, o = torch.arange(heads, device=DEVICE), torch.arange(64, device=DEVICE)
        scale = torch.zeros(rows, 1, 4, 16, 4, device=DEVICE, dtype=torch.uint8)
        scale[:, 0, :, h % 16, h // 16] = exponents.transpose(1, 2)
        pool = IndexPool.allocate(SPEC, len(key_bytes), DEVICE)
        pool.payload.copy_(key_bytes.view(-1, 64, 4, 16).transpose(1, 2).unsqueeze(1))
        flat = pool.scale.view(-1, 4, 64)
        flat[:, :, (o % 16) * 4 + o // 16] = key_exponents.transpose(1, 2)
        query = Query(SPEC, heads, payload=packed.contiguous(), scale=scale)
        weights = torch.randn(rows, heads, device=DEVICE)
        return cls(query, weights, pool, key_bytes, key_exponents, exponents)

    def exact(
        self,
        table: Tensor,
        starts: list[int],
        ends: list[int],
        seqs: list[int],
        weights: Tensor,
        scale: float,
        width: int,
    ) -> Tensor:
        """float64 [T, width]; NaN where a row sees no key."""
        assert self.query.payload is not None
        q = decoded(self.query.payload, self.query_exponents)
        out = torch.full((len(ends), width), float("nan"), dtype=torch.float64, device=DEVICE)
        for t, (start, end, seq) in enumerate(zip(starts, ends, seqs, strict=True)):
            pages = table[seq, : -(-end // 64)].long()
            keys = decoded(self.key_bytes[pages], self.key_exponents[pages]).flatten(0, 1)[start:end]
            if start < end:
                out[t, start:end] = (torch.relu(q[t] @ keys.T) * weights[t].double()[:, None]).sum(0) * scale
        return out
