"""The decode schedule from our own kernels, whose registers do not grow with the number of rows."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

CHUNK = 256


def repair(module: ModuleType, defects: frozenset[str]) -> None:
    """Replace `compute_varctx_schedule` for chunks of 256 keys; others, which nobody launches, stay upstream's."""
    upstream = module.compute_varctx_schedule

    @functools.wraps(upstream)
    def compute_varctx_schedule(
        context_lens: Tensor,
        block_k: int,
        parallel_unit_num: int | None,
        max_seq_len: int,
        next_n: int = 1,
        cta_info_out: Tensor | None = None,
    ) -> Any:
        if block_k != CHUNK:
            return upstream(context_lens, block_k, parallel_unit_num, max_seq_len, next_n, cta_info_out)
        slots = parallel_unit_num or context_lens.shape[0] * next_n * max(1, -(-max_seq_len // CHUNK))
        info = schedule(context_lens.to(torch.int32), slots, max_seq_len, next_n)
        if cta_info_out is not None:
            info = cta_info_out.copy_(info)
        return info[:, 2].amax().reshape(1), info, slots

    module.compute_varctx_schedule = compute_varctx_schedule  # type: ignore[attr-defined]


def schedule(lengths: Tensor, slots: int, max_seq_len: int, next_n: int) -> Tensor:
    """int32 [slots, 4]: sequence * next_n + row, first chunk, chunks, length; the rows of a sequence side by side.

    `lengths` int32 [B]. ValueError as upstream's: `slots` is a multiple of `next_n`, and at least B * next_n.
    """
    from dsv4_kernels.portable.schedule import decode_schedule

    if slots % next_n or slots // next_n < lengths.shape[0]:
        least = lengths.shape[0] * next_n
        raise ValueError(f"parallel_unit_num is {slots}: accepted is a multiple of next_n={next_n}, {least} or more")
    of_sequences = decode_schedule(lengths, max_seq_len, slots // next_n, CHUNK)
    info = of_sequences.repeat_interleave(next_n, 0)
    rows = torch.arange(slots, dtype=torch.int32, device=info.device) % next_n
    # A slot that nobody uses names row 0, and has no length.
    info[:, 0] = torch.where(info[:, 3] > 0, info[:, 0] * next_n + rows, 0)
    return info
