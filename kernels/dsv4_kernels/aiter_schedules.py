"""AITER's launch plans under AITER's names: what engines build before a launch and hand over with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsv4_kernels import schedules
from dsv4_kernels.dispatch import THRESHOLDS
from dsv4_kernels.errors import ArgumentError

CTA_INFO_WIDTH = 6
"""int32 fields of a prefill schedule's slot."""


@dataclass(frozen=True, slots=True)
class Fp4MqaPlan:
    """What a row-group launch was planned for. Our kernels need no more than the shapes, so this only guards them."""

    num_seqs: int
    max_qlen: int
    num_rows: int
    heads: int
    page_size: int
    max_seq_len: int
    pages_per_block: int

    def require_launch(self, *, rows: int, heads: int, page_size: int, max_seq_len: int) -> None:
        """Raise ArgumentError unless the launch has the shapes that this plan was made for."""
        launch = (rows, heads, page_size, max_seq_len)
        planned = (self.num_rows, self.heads, self.page_size, self.max_seq_len)
        if launch != planned:
            names = "(num_rows, heads, page_size, max_seq_len)"
            raise ArgumentError("plan", f"{names} = {planned}", f"{launch}, the launch's own")


def make_fp4_mqa_plan(
    num_seqs: int,
    max_qlen: int,
    num_rows: int,
    heads: int,
    page_size: int,
    max_seq_len: int,
    pages_per_block: int = 1,
) -> Fp4MqaPlan:
    """The plan of a row-group launch. Raises ArgumentError for a page size that row groups do not have."""
    if page_size not in (8, 64):
        raise ArgumentError("page_size", page_size, "8 or 64")
    if heads % 16 or not 16 <= heads <= 128:
        raise ArgumentError("heads", heads, "a multiple of 16 from 16 to 128")
    for name, value in (("num_seqs", num_seqs), ("max_qlen", max_qlen), ("pages_per_block", pages_per_block)):
        if value < 1:
            raise ArgumentError(name, value, "an integer >= 1")
    if not 1 <= num_rows <= num_seqs * max_qlen:
        raise ArgumentError("num_rows", num_rows, f"1 to {num_seqs * max_qlen}: num_seqs sequences of max_qlen rows")
    return Fp4MqaPlan(num_seqs, max_qlen, num_rows, heads, page_size, max_seq_len, pages_per_block)


def compute_prefill_schedule(
    row_to_batch: Tensor,
    local_starts: Tensor,
    local_ends: Tensor,
    block_k: int,
    parallel_unit_num: int,
    max_seq_len: int,
    cta_info_out: Tensor | None = None,
) -> tuple[Tensor, Tensor, int]:
    """(chunks of the busiest slot, int32 [P, 6] schedule, P), the schedule in `cta_info_out` if that is given."""
    if block_k != THRESHOLDS.chunk:
        raise ArgumentError("block_k", block_k, str(THRESHOLDS.chunk))
    info = schedules.prefill_schedule(
        local_starts, local_ends, row_to_batch, max_seq_len=max_seq_len, ctas=parallel_unit_num
    )
    if cta_info_out is not None:
        info = cta_info_out.copy_(info)
    return info[:, 3].amax(), info, parallel_unit_num


class _CtaInfoLauncher:
    """AITER's `_prefill_cta_info_kernel`: `kernel[grid](...)` fills a schedule from finished prefix sums."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return _fill_cta_info


prefill_cta_info = _CtaInfoLauncher()


def _fill_cta_info(
    inclusive: Tensor,
    exclusive: Tensor,
    chunks: Tensor,
    row_to_batch: Tensor,
    local_starts: Tensor,
    local_ends: Tensor,
    chunks_per_slot: Tensor,
    used_slots: Tensor,
    cta_info: Tensor,
    rows: int,
    slots: int,
    **meta: Any,
) -> None:
    slot = torch.arange(slots, dtype=torch.int32, device=cta_info.device)
    row = torch.searchsorted(inclusive[:rows], slot, right=True).clamp_(max=rows - 1)
    first = (slot - exclusive[row]) * chunks_per_slot
    count = torch.minimum((chunks[row] - first).clamp(min=0), chunks_per_slot)
    fields = torch.stack([row.int(), row_to_batch[row], first, count, local_starts[row], local_ends[row]], 1)
    unused = torch.tensor([0, 0, 0, 1, 0, 0], dtype=torch.int32, device=cta_info.device)
    cta_info.copy_(torch.where((slot < used_slots).unsqueeze(1), fields, unused))
