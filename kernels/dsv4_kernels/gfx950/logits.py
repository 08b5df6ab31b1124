"""Host side of the gfx950 paged logits: check, choose a variant, launch."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.gfx950 import compiled
from dsv4_kernels.gfx950.order import BLOCK, Order
from dsv4_kernels.layout import RECORD68, RECORD68_N16, RECORD68_P128, SPLIT8, SPLIT64
from dsv4_kernels.logits_call import LogitsCall
from dsv4_kernels.registry import ROWS_PER_WAVE, logits_name

LAYOUTS = (SPLIT64, SPLIT8, RECORD68, RECORD68_N16, RECORD68_P128)
MOST_STRIDE = 1 << 31
"""Bytes from one page to the next that an argument of 32 bits holds."""

WAVES = 4096
"""Waves to aim for: 256 compute units, four SIMDs each, four waves a SIMD."""


def paged_logits(fast: bool, call: LogitsCall) -> Tensor:
    """See `ops.paged_logits`. Columns that a row does not see stay unwritten."""
    out = call.output()
    if call.starts is not None and call.row_to_seq is None:
        # Windows exist for rows of sequences only: one variant fewer for a form that no engine launches.
        sequences = torch.arange(call.rows, dtype=torch.int32, device=call.pool.device)
        call = replace(call, row_to_seq=sequences)
    if call.rows:
        launch(call, out, rows_per_wave=rows_per_wave(call.heads, call.row_to_seq), fast=fast)
    return out


def rows_per_wave(heads: int, row_to_seq: Tensor | None) -> int:
    """Rows that share a wave: their queries and weights must fit its registers."""
    return 1 if row_to_seq is None else ROWS_PER_WAVE.get(heads, 1)


def launch(call: LogitsCall, out: Tensor, *, rows_per_wave: int, fast: bool, splits: int | None = None) -> object:
    """Launch one variant into `out` float32 [T, n]; returns the compiled kernel where Triton compiled it.

    `rows_per_wave` 1, 2 or 4 consecutive rows share a wave, and their keys where they belong to one sequence. `fast`
    reads matrix results in inline assembly. `splits` waves, a power of two, share a row's pages.
    """
    payload, scale = call.packed("gfx950")
    _check(call)
    blocks = -(-call.rows // rows_per_wave)
    if splits is None:
        splits = max(1, min(WAVES // blocks, -(-out.shape[1] // 64)))
    shift = splits.bit_length() - 1
    pool, weights = call.pool, _weights(call)
    arguments: dict[str, Tensor | int | float] = {
        "q_ptr": payload,
        "q_scale_ptr": scale,
        "payload_ptr": pool.payload,
        "scale_ptr": pool.scale,
        "table_ptr": call.page_table,
        "weights_ptr": weights,
        "seq_ptr": call.row_to_seq if call.row_to_seq is not None else call.lengths,
        "starts_ptr": call.starts if call.starts is not None else call.lengths,
        "ends_ptr": call.lengths,
        "out_ptr": out,
        "rows": call.rows,
        "payload_stride": pool.payload_stride,
        "scale_stride": pool.scale_stride,
        "stride_table": call.page_table.stride(0),
        "stride_weights": weights.stride(0),
        "stride_out": out.stride(0),
        "weight_scale": call.weight_scale,
        "split_shift": shift,
    }
    shared, windowed = call.row_to_seq is not None, call.starts is not None
    of = pool.spec.layout
    store = compiled.active()
    if store is not None:
        name = logits_name(
            call.heads,
            rows_per_wave,
            shared=shared,
            windowed=windowed,
            fast=fast,
            layout=of.name,
            float_weights=weights.dtype == torch.float32,
            blocks=call.gathers,
        )
        store.launch(name, (blocks, 1 << shift, 1), arguments)
        return None
    from dsv4_kernels.gfx950.logits_kernel import paged_logits_kernel

    return paged_logits_kernel[(blocks, 1 << shift)](
        **arguments,
        HEADS=call.heads,
        COLUMNS=scale.shape[-1],
        R=rows_per_wave,
        SHARED=shared,
        WINDOWED=windowed,
        FAST=fast,
        ORDER=Order(of, call.entry_slots),
        num_warps=1,
        enable_fp_fusion=True,
    )


def _weights(call: LogitsCall) -> Tensor:
    """Head weights in bfloat16 or float32, which kernels exist for; float16 has no exact place in the former."""
    return call.weights if call.weights.dtype == torch.bfloat16 else call.weights.float()


def _check(call: LogitsCall) -> None:
    for name, stride in (("payload", call.pool.payload_stride), ("scale", call.pool.scale_stride)):
        if stride >= MOST_STRIDE:
            raise ArgumentError(f"pool.{name}_stride", stride, f"less than {MOST_STRIDE} bytes on the gfx950 backend")
    if call.pool.spec.layout not in LAYOUTS:
        told = ", ".join(repr(of.name) for of in LAYOUTS)
        raise ArgumentError("pool.spec.layout", repr(call.pool.spec.layout.name), f"{told} on the gfx950 backend")
    if call.gathers and (call.pool.spec.layout == SPLIT64 or call.table_slots != BLOCK):
        told = f"blocks of {BLOCK} keys in records on the gfx950 backend"
        raise ArgumentError("table_slots", f"{call.table_slots} in {call.pool.spec.layout.name}", told)
    if call.heads not in ROWS_PER_WAVE:
        raise ArgumentError("query.heads", call.heads, "16, 32, 64 or 128 on the gfx950 backend")
