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


GROUP_REGISTERS = 128
"""Of a thread of a group: four programs stay resident, for 16 bytes that spill outside the loop over pages."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Thread blocks a multiprocessor that a launch aims at, by the registers that the kernels take."""

    wave: int = 6
    """Single rows while runs are short: what is resident at once with 80 registers a thread."""

    many: int = 18
    """Single rows with longer runs: three waves, so that rows of different lengths balance."""

    long_run: int = 32
    """Pages a program from which on runs are long."""

    groups: int = 4
    """Groups of rows: what is resident at once."""


PROGRAMS = Programs()


def paged_logits(call: LogitsCall) -> Tensor:
    """See `ops.paged_logits`. Columns that a row does not see stay unwritten.

    Layouts other than split64 and head counts other than 64 and 32 are served by the portable kernel, warned once and
    counted as fallbacks.
    """
    if call.accumulate is not torch.float32:
        raise ArgumentError("accumulate", call.accumulate, "torch.float32 on the hopper backend")
    reason = not_built_for(call.query, call.pool)
    if reason:
        _warn(reason)
        counters.count_fallback("paged_logits", reason)
        return portable.paged_logits(call)
    out = call.output()
    if call.rows:
        tensors = (call.query, call.pool, call.weights, call.page_table, call.lengths, call.row_to_seq, call.starts)
        launch(*tensors, call.weight_scale, out)
    return out


def not_built_for(query: Query, pool: IndexPool) -> str:
    """Empty if these kernels score such a query and pool, else why not."""
    if pool.spec.layout != SPLIT64:
        return f"hopper has no kernel for layout {pool.spec.layout.name}"
    if query.heads not in HEADS:
        return f"hopper has no kernel for {query.heads} heads"
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
    registers: int | None = None,
) -> object:
    """Launch the kernel that fits into `out` float32 [T, n], and return it compiled.

    `programs` and `registers`, a bound on those of a thread, are for measurements.
    """
    if query.payload is None or query.scale is None:
        raise ArgumentError("query", "a query without payload or scale", "a packed FP4 query on the hopper backend")
    rows, heads = query.rows, query.heads
    pages = min(-(-out.shape[1] // SPLIT64.page_slots), page_table.shape[1])
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
    if row_to_seq is not None:
        registers = registers or GROUP_REGISTERS
    options = {"enable_fp_fusion": True} | ({"maxnreg": registers} if registers else {})
    opened = starts if starts is not None else ends
    processors = _processors(pool.device)
    if row_to_seq is not None:
        blocks = -(-rows // GROUP)
        splits = max(1, min(programs.groups * processors // blocks, pages))
        return groups_kernel[(blocks * splits,)](
            *tensors, row_to_seq, opened, ends, out, rows, *numbers, splits,
            GROUP=GROUP, WINDOWED=starts is not None, **constants, num_warps=4, **options,
        )  # fmt: skip
    wave = programs.wave * processors
    if starts is None and rows * pages <= wave:
        return brief_kernel[(rows * pages,)](
            *tensors, ends, out, *numbers, pages, **constants, num_warps=4, **options
        )  # fmt: skip
    few_pages = programs.long_run * wave // rows
    few = max(1, min(wave // rows, pages))
    splits = few if pages <= few_pages else max(few, min(programs.many * processors // rows, pages))
    return rows_kernel[(rows * splits,)](
        *tensors, opened, ends, out, *numbers, splits, few, few_pages,
        WINDOWED=starts is not None, **constants, num_warps=4, **options,
    )  # fmt: skip


@cache
def _warn(reason: str) -> None:
    log.warning("paged_logits: %s, the portable kernel serves it", reason)


@cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
