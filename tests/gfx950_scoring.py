"""Cases of the gfx950 paged logits: run on the emulator and compared with float64."""

from __future__ import annotations

import torch
from torch import Tensor

import logits_scoring
from dsv4_kernels.gfx950 import logits as gfx950_logits
from dsv4_kernels.pool import IndexSpec
from gfx950_emulator import active
from gfx950_emulator.machine.options import Order
from gfx950_emulator.session import Session
from logits_scoring import POISON

PAGE8 = IndexSpec.named("split8", hadamard=False)


class Scoring(logits_scoring.Scoring):
    """With bfloat16 weights, which the kernels have a form for."""

    weights_dtype = torch.bfloat16

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
