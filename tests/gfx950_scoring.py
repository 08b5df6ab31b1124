"""Cases of the gfx950 paged logits: random pools and queries, run on the emulator and compared with float64."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import reference
from dsv4_kernels.gfx950 import logits as gfx950_logits
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec
from gfx950_emulator import active
from gfx950_emulator.machine.options import Order
from gfx950_emulator.session import Session

POISON = 12345.0
SPEC = IndexSpec(hadamard=False)
PAGE8 = IndexSpec.named("split8", hadamard=False)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


class Scoring:
    """A pool of random keys over some octaves, queries, and weights of both signs."""

    def __init__(
        self,
        rows: int,
        heads: int,
        pages: int = 20,
        octaves: int = 2,
        gap: int = 0,
        seed: int = 0,
        spec: IndexSpec = SPEC,
    ) -> None:
        torch.manual_seed(seed)
        tensors = {}
        for s in spec.layout.tensors:
            whole = torch.full((pages, s.bytes_per_page + gap), 0xEE, dtype=torch.uint8)
            tensors[s.name] = whole[:, : s.bytes_per_page].view(pages, *s.shape)
        self.pool = IndexPool(spec, tensors)
        tokens = self.pool.tokens
        cos, sin, zero = torch.ones(1, 32), torch.zeros(1, 32), torch.zeros(tokens, dtype=torch.int64)
        weight = torch.exp2(torch.randint(-octaves, octaves + 1, (128,)).float())
        keys = torch.randn(tokens, 128)
        reference.write_index_keys(self.pool, keys, weight, 0.0, cos, sin, zero, torch.arange(tokens))
        positions = torch.zeros(rows, dtype=torch.int64)
        self.query = reference.quantize_query(torch.randn(rows, heads, 128), cos, sin, positions, spec)
        self.weights = torch.randn(rows, heads).bfloat16()

    def tables(self, count: int, columns: int) -> Tensor:
        return torch.stack([torch.randperm(self.pool.pages)[:columns] for _ in range(count)]).int()

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

    def check(
        self,
        table: Tensor,
        ends: Tensor,
        width: int,
        *,
        seqs: Tensor | None = None,
        starts: Tensor | None = None,
        rows_per_wave: int = 1,
        fast: bool = True,
        splits: int = 1,
        order: Order = "lockstep",
        tolerance: float = 2e-6,
    ) -> Session:
        """Run on the emulator; within tolerance where a row sees a key, nothing written elsewhere."""
        out = torch.full((self.query.rows, width), POISON)
        with active(order=order) as session:
            gfx950_logits.launch(
                self.call(table, ends, width, seqs=seqs, starts=starts),
                out,
                rows_per_wave=rows_per_wave,
                fast=fast,
                splits=splits,
            )
        self.compare(out, self.exact(table, ends, width, seqs=seqs, starts=starts), tolerance)
        return session

    def exact(
        self, table: Tensor, ends: Tensor, width: int, *, seqs: Tensor | None = None, starts: Tensor | None = None
    ) -> Tensor:
        """In float64, with -inf where a row sees no key."""
        return reference.paged_logits(self.call(table, ends, width, seqs=seqs, starts=starts, accumulate=torch.float64))

    def compare(self, out: Tensor, exact: Tensor, tolerance: float = 2e-6) -> None:
        seen = torch.isfinite(exact)
        assert bool((out[~seen] == POISON).all())
        mean = exact.masked_fill(~seen, 0).abs().sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp(min=1)
        error = ((out - exact).abs() / torch.maximum(exact.abs(), mean))[seen]
        assert not error.numel() or float(error.max()) < tolerance
