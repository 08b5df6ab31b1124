"""Whether this Triton gives the registers that the sm90 kernels count on: their logits against the exact kernel's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, IndexSpec, Query
from dsv4_kernels.portable import sm90_logits

BOUND = 1e-3
"""Relative error (norm). Scales over three octaves round to 2e-4, a byte in a wrong place gives more than 1e-1."""

PAGES, ROWS = 4, 5

Logits = Callable[[LogitsCall], Tensor]


def mismatch(exact: Logits, device: torch.device, processors: int, *, assembly: bool = True) -> str:
    """Empty if the sm90 kernels agree with `exact` on random codes, for single rows and for rows of a sequence."""
    for heads in (64, 32):
        call = _call(heads, device)
        for form, seqs in (("single rows", None), ("rows of a sequence", _ints(device, 0, 0, 0, 1, 1))):
            asked = replace(call, row_to_seq=seqs)
            out = torch.full((ROWS, PAGES * 64), torch.inf, device=device)
            sm90_logits.launch(asked, out, processors, assembly=assembly)
            known = exact(asked)
            seen = torch.arange(PAGES * 64, device=device) < asked.lengths[:, None]
            error = float((out - known)[seen].norm() / known[seen].norm())
            # A comparison that NaN fails.
            if not error <= BOUND:
                return f"the sm90 kernels' logits of {form} with {heads} heads are off by {error:.1e}"
    return ""


def _ints(device: torch.device, *values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def _call(heads: int, device: torch.device) -> LogitsCall:
    spec = IndexSpec(hadamard=False)
    noise = torch.Generator().manual_seed(0)

    def random(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=noise, dtype=torch.uint8).to(device)

    tensors = {
        s.name: random(*((126, 129) if s.name == "scale" else (0, 256)), PAGES, *s.shape) for s in spec.layout.tensors
    }
    payload, scale = random(0, 256, ROWS, heads, 64), random(126, 129, ROWS, 1, 4, 16, max(4, heads // 16))
    table = torch.stack([torch.randperm(PAGES, generator=noise) for _ in range(ROWS)]).int().to(device)
    return LogitsCall(
        query=Query(spec, heads, payload=payload, scale=scale),
        pool=IndexPool(spec, tensors),
        weights=torch.randn(ROWS, heads, generator=noise).to(device),
        page_table=table,
        lengths=_ints(device, 256, 1, 130, 64, 255),
        weight_scale=1.0,
        max_seq_len=PAGES * 64,
    )
