"""Host side of Hopper's paged logits: check, choose a kernel, launch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from dsv4_kernels import counters, portable
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.hopper.kernels import brief_kernel, groups_kernel, rows_kernel
from dsv4_kernels.layout import SPLIT64
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.pool import IndexPool, Query

log = logging.getLogger(__name__)

HEADS = (32, 64)
GROUP = 4
"""Rows that share unpacked pages: two columns each of the eight that the narrowest product has."""

REGISTERS = {"brief_kernel": 64, "rows_kernel": 80, "groups_kernel": 128}
"""Of a thread: so many programs stay resident as `Programs` says."""

BRIEF_PAGES = 4
"""Up to so many pages a program, the kernel that finds its pages without looking at other rows is faster."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Thread blocks a multiprocessor: what is resident at once with the registers that the kernels take.

    Fractions serve tests, which want few programs with long runs of pages.
    """

    brief: float = 8
    """Single rows of few pages."""

    rows: float = 6
    """Single rows."""

    groups: int = 4
    """Groups of rows."""


PROGRAMS = Programs()


def paged_logits(call: LogitsCall) -> Tensor:
    """See `ops.paged_logits`. Columns that a row does not see stay unwritten.

    Layouts other than split64, tables of blocks, and head counts other than 64 and 32 are served by the portable
    kernel, warned once and counted as fallbacks.
    """
    if call.accumulate is not torch.float32:
        raise ArgumentError("accumulate", call.accumulate, "torch.float32 on the hopper backend")
    reason = not_built_for(call)
    if reason:
        _warn(reason)
        counters.count_fallback("paged_logits", reason)
        return portable.paged_logits(call)
    out = call.output()
    if call.rows:
        tensors = (call.query, call.pool, call.weights, call.page_table, call.lengths, call.row_to_seq, call.starts)
        launch(*tensors, call.weight_scale, out)
    return out


def not_built_for(call: LogitsCall) -> str:
    """Empty if these kernels serve such a call, else why not."""
    if call.pool.spec.layout != SPLIT64:
        return f"hopper has no kernel for layout {call.pool.spec.layout.name}"
    if call.gathers:
        return "hopper has no kernel for tables of blocks"
    if call.heads not in HEADS:
        return f"hopper has no kernel for {call.heads} heads"
    return ""


def launch(
    query: Query,
    pool: IndexPool,
    weights: Tensor,
    page_table: Tensor,
    ends: Tensor,
    row_to_seq: Tensor | None,
    starts: Tensor | None,
    weight_scale: float,
    out: Tensor,
    programs: Programs = PROGRAMS,
) -> object:
    """Launch the kernel that fits into `out` float32 [T, n], and return it compiled. `programs` is for measurements."""
    if query.payload is None or query.scale is None:
        raise ArgumentError("query", "a query without payload or scale", "a packed FP4 query on the hopper backend")
    rows, heads = query.rows, query.heads
    bound = min(out.shape[1], page_table.shape[1] * SPLIT64.page_slots)
    pages = -(-bound // SPLIT64.page_slots)
    weights = weights.float() if weights.dtype == torch.float64 else weights
    tensors = (
        query.payload.view(torch.int32),
        query.scale,
        pool.payload.view(torch.int32),
        pool.scale.view(torch.uint16),
        page_table,
        weights,
    )
    numbers = (page_table.stride(0), weights.stride(0), out.stride(0), weight_scale)
    constants = {"HEADS": heads, "KEYS_STRIDE": pool.payload_stride // 4, "SCALES_STRIDE": pool.scale_stride // 2}
    options = {"num_warps": 4, "enable_fp_fusion": True}
    opened = starts if starts is not None else ends
    processors = _processors(pool.device)
    if row_to_seq is not None:
        blocks = -(-rows // GROUP)
        splits = max(1, min(programs.groups * processors // blocks, pages))
        return groups_kernel[(blocks * splits,)](
            *tensors, row_to_seq, opened, ends, out, rows, bound, *numbers, splits,
            GROUP=GROUP, WINDOWED=starts is not None, **constants, **options, maxnreg=REGISTERS["groups_kernel"],
        )  # fmt: skip
    # A single row takes this kernel at any width, so that its time does not depend on the width.
    wave = int(programs.brief * processors)
    if starts is None and (rows == 1 or rows * pages <= BRIEF_PAGES * wave):
        splits = max(1, min(wave // rows, pages))
        return brief_kernel[(rows * splits,)](
            *tensors, ends, out, bound, *numbers, splits, **constants, **options, maxnreg=REGISTERS["brief_kernel"]
        )  # fmt: skip
    count = max(1, min(int(programs.rows * processors), rows * pages))
    return rows_kernel[(count,)](
        *tensors, opened, ends, out, rows, bound, *numbers, count, 1 / count,
        WINDOWED=starts is not None, **constants, **options, maxnreg=REGISTERS["rows_kernel"],
    )  # fmt: skip


@cache
def _warn(reason: str) -> None:
    log.warning("paged_logits: %s, the portable kernel serves it", reason)


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
