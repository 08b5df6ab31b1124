"""Pools, queries and weights to score, and what logits are held against: the reference in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec

POISON = 12345.0
"""What an output holds before a launch, and still holds where a row sees no key."""

SPEC = IndexSpec(hadamard=False)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pool_of(spec: IndexSpec, pages: int, gap: int = 0, device: torch.device | str = "cpu") -> IndexPool:
    """Pages with `gap` bytes between them, which hold 0xEE."""
    tensors = {}
    for s in spec.layout.tensors:
        whole = torch.full((pages, s.bytes_per_page + gap), 0xEE, dtype=torch.uint8, device=device)
        tensors[s.name] = whole[:, : s.bytes_per_page].view(pages, *s.shape)
    return IndexPool(spec, tensors)


class Scoring:
    """A pool of random keys over some octaves, queries, and weights of both signs."""

    weights_dtype = torch.float32

    def __init__(
        self,
        rows: int,
        heads: int,
        *,
        pages: int = 20,
        octaves: int = 2,
        gap: int = 0,
        seed: int = 0,
        spec: IndexSpec = SPEC,
        device: torch.device | str = "cpu",
    ) -> None:
        torch.manual_seed(seed)
        self.spec, self.device = spec, device
        self.pool = pool_of(spec, pages, gap, device)
        tokens = self.pool.tokens
        cos, sin, zero = torch.ones(1, 32), torch.zeros(1, 32), torch.zeros(max(tokens, rows), dtype=torch.int64)
        weight = torch.exp2(torch.randint(-octaves, octaves + 1, (128,)).float())
        keys, queries = torch.randn(tokens, 128), torch.randn(rows, heads, 128)
        keys, weight, cos, sin, zero, slots = (
            t.to(device) for t in (keys, weight, cos, sin, zero, torch.arange(tokens))
        )
        reference.write_index_keys(self.pool, keys, weight, 0.0, cos, sin, zero[:tokens], slots)
        self.query = reference.quantize_query(queries.to(device), cos, sin, zero[:rows], spec)
        self.weights = torch.randn(rows, heads).to(device, self.weights_dtype)

    def tables(self, count: int, columns: int) -> Tensor:
        """Page tables int32 [count, columns], of pages in any order."""
        tables = [torch.randperm(self.pool.pages)[:columns] for _ in range(count)]
        return torch.stack(tables).int().to(self.device)

    def call(
        self,
        table: Tensor,
        ends: Tensor,
        width: int,
        *,
        seqs: Tensor | None = None,
        starts: Tensor | None = None,
        accumulate: torch.dtype = torch.float32,
    ) -> LogitsCall:
        return LogitsCall(
            query=self.query,
            pool=self.pool,
            weights=self.weights,
            page_table=table,
            lengths=ends,
            row_to_seq=seqs,
            starts=starts,
            weight_scale=0.5,
            max_seq_len=width,
            accumulate=accumulate,
        )

    def exact(
        self, table: Tensor, ends: Tensor, width: int, *, seqs: Tensor | None = None, starts: Tensor | None = None
    ) -> Tensor:
        """In float64, with -inf where a row sees no key."""
        return reference.paged_logits(self.call(table, ends, width, seqs=seqs, starts=starts, accumulate=torch.float64))

    @staticmethod
    def compare(out: Tensor, exact: Tensor, tolerance: float = 2e-6) -> None:
        """Each logit is near the exact one, beside it or the row's mean; POISON stands where a row sees no key."""
        seen = torch.isfinite(exact)
        assert bool((out[~seen] == POISON).all())
        mean = exact.masked_fill(~seen, 0).abs().sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
        error = ((out - exact).abs() / torch.maximum(exact.abs(), mean))[seen]
        assert not error.numel() or float(error.max()) < tolerance
