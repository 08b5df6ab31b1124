"""The AITER names that engines call on the FP4 index path, on top of `ops`.

An engine that would import these from AITER can be given this module's instead, name by name: `MODULES` says
which AITER module each belongs to. Signatures are AITER's, with the row-group arguments that it gained later;
what AITER accepts in silence and cannot do (other group sizes, page sizes, dtypes) is an ArgumentError here.

Our kernels find their own work, so a schedule that comes with a launch is accepted and not read.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from dsv4_kernels import aiter_schedules, aiter_tensors, ops
from dsv4_kernels.aiter_schedules import Fp4MqaPlan, make_fp4_mqa_plan
from dsv4_kernels.counters import Phase
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.formats import GROUP
from dsv4_kernels.layout import HEAD_DIM, SPLIT64
from dsv4_kernels.reference.transform import ROPE_DIM

FP4X2 = torch.float4_e2m1fn_x2
dtypes = SimpleNamespace(fp4x2=FP4X2, fp8=torch.float8_e4m3fn, fp8_e8m0=torch.float8_e8m0fnu)


def rope_rotate_activation(
    out: Tensor,
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rope_dim: int,
    out_scale: Tensor | None = None,
    group_size: int | None = None,
    shuffle_scale: bool = True,
    do_rotate_act: bool = True,
) -> None:
    """Quantise queries `input` [T, H, 128] into `out` fp4x2 [T, H, 64] and `out_scale` uint8 [T, 1, 4, 16, 4].

    Unused places of `out_scale` become zero. `do_rotate_act` asks for the Hadamard rotation.
    """
    _require("out.dtype", out.dtype, FP4X2)
    _require("rope_dim", rope_dim, ROPE_DIM)
    _require("group_size", GROUP if group_size is None else group_size, GROUP)
    _require("shuffle_scale", shuffle_scale, True)
    if out_scale is None:
        raise ArgumentError("out_scale", None, "a uint8 tensor: FP4 needs scales")
    query = ops.quantize_query(input, cos, sin, positions, spec=aiter_tensors.spec(SPLIT64, do_rotate_act))
    assert query.payload is not None
    assert query.scale is not None
    out.view(torch.uint8).copy_(query.payload)
    out_scale.copy_(query.scale)


def rmsnorm_rope_rotate_activation_fp4quant_kvcache(
    kvcache: Tensor,
    scale: Tensor,
    input: Tensor,
    norm_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    epsilon: float,
    rope_dim: int,
    kv_block_size: int = 16,
    group_size: int = 32,
    shuffle_scale: bool = True,
    do_rotate_act: bool = False,
) -> None:
    """Norm, rotate, quantise keys `input` [n, 1, 128] and scatter them to `slot_mapping` int64 [n]; -1 skips a row.

    `kvcache` fp4x2 [pages, 1, 4, kv_block_size, 16], `scale` uint8 [pages, 1, 4, kv_block_size].
    """
    _require("rope_dim", rope_dim, ROPE_DIM)
    _require("group_size", group_size, GROUP)
    _require("shuffle_scale", shuffle_scale, True)
    if input.ndim != 3 or input.shape[1] != 1:
        raise ArgumentError("input.shape", list(input.shape), f"[any, 1, {HEAD_DIM}]")
    pool = aiter_tensors.index_pool(kvcache, scale, kv_block_size, hadamard=do_rotate_act)
    ops.write_index_keys(pool, input[:, 0], norm_weight, epsilon, cos, sin, positions, slot_mapping)


def flydsl_pa_mqa_logits_fp4(
    q_fp4: Tensor,
    q_scale: Tensor,
    kv_cache: Tensor,
    kv_scale: Tensor,
    block_tables: Tensor,
    weights: Tensor,
    context_lens: Tensor | None,
    max_seq_len: int,
    *,
    weight_scale: float = 1.0,
    next_n: int = 1,
    block_k: int = 256,
    kv_block_size: int = 64,
    num_warps: int = 4,
    parallel_unit_num: int | None = None,
    out: Tensor | None = None,
    cta_info: Tensor | None = None,
    total_ctas: int | None = None,
    stream: object = None,
    row_ends: Tensor | None = None,
    query_start_loc: Tensor | None = None,
    max_query_len: int | None = None,
    pages_per_block: int = 1,
    plan: Fp4MqaPlan | None = None,
) -> Tensor:
    """float32 [rows, >= max_seq_len] logits of `q_fp4` uint8 [B, next_n, H, 64].

    Row n of sequence b sees keys below `context_lens[b] - next_n + n + 1`. With `query_start_loc` int32 [S + 1] the
    call is a row group: rows `query_start_loc[s]..query_start_loc[s + 1]` belong to table row s and see keys below
    `row_ends` int32 [B]; an entry of the table names `pages_per_block` neighbouring pages. Columns that a row does
    not see stay as they are if `out` and a schedule or a row group is given, else they become -inf.
    """
    _require("q_fp4.shape[1]", q_fp4.shape[1], next_n)
    rows = q_fp4.shape[0] * next_n
    table = aiter_tensors.pages(block_tables, pages_per_block)
    phase: Phase = "decode"
    seqs: Tensor | None = None
    if query_start_loc is not None:
        if row_ends is None:
            raise ArgumentError("row_ends", None, "an int32 tensor: query_start_loc makes the launch a row group")
        lengths = row_ends
        seqs = aiter_tensors.sequences(query_start_loc, rows)
        phase = "decode" if max_query_len == 1 else "verify"
        if plan is not None:
            plan.require_launch(rows=rows, heads=q_fp4.shape[2], page_size=kv_block_size, max_seq_len=max_seq_len)
    elif context_lens is None:
        raise ArgumentError("context_lens", None, "an int32 tensor, or query_start_loc and row_ends")
    else:
        lengths, seqs = aiter_tensors.draft_rows(context_lens, next_n)
    pool = aiter_tensors.index_pool(kv_cache, kv_scale, kv_block_size)
    logits = ops.paged_logits(
        aiter_tensors.query(q_fp4, q_scale, pool.spec),
        pool,
        weights,
        table,
        lengths,
        weight_scale=weight_scale,
        max_seq_len=max_seq_len,
        row_to_seq=seqs,
        phase=phase,
    )
    planned = cta_info is not None or query_start_loc is not None
    return _deliver(logits, None, lengths, out, keep=planned)


def flydsl_pa_mqa_logits_fp4_prefill(
    q_fp4: Tensor,
    q_scale: Tensor,
    kv_cache: Tensor,
    kv_scale: Tensor,
    block_tables: Tensor,
    weights: Tensor,
    row_to_batch: Tensor,
    local_starts: Tensor,
    local_ends: Tensor,
    max_seq_len: int,
    *,
    weight_scale: float = 1.0,
    block_k: int = 256,
    kv_block_size: int = 64,
    num_warps: int = 4,
    parallel_unit_num: int = 512,
    out: Tensor | None = None,
    cta_info: Tensor | None = None,
    n_ctas: int | None = None,
    stream: object = None,
) -> Tensor:
    """float32 [T, >= max_seq_len] logits of `q_fp4` uint8 [T, H, 64]: row t sees keys `local_starts[t]` to
    `local_ends[t] - 1` of table row `row_to_batch[t]`.

    Columns that a row does not see stay as they are if `out` and a schedule are given, else they become -inf.
    """
    pool = aiter_tensors.index_pool(kv_cache, kv_scale, kv_block_size)
    logits = ops.paged_logits(
        aiter_tensors.query(q_fp4, q_scale, pool.spec),
        pool,
        weights,
        block_tables,
        local_ends,
        weight_scale=weight_scale,
        max_seq_len=max_seq_len,
        row_to_seq=row_to_batch,
        starts=local_starts,
        phase="prefill",
    )
    return _deliver(logits, local_starts, local_ends, out, keep=cta_info is not None)


def _deliver(logits: Tensor, starts: Tensor | None, ends: Tensor, out: Tensor | None, *, keep: bool) -> Tensor:
    """`logits` in `out`, where only the columns that a row sees are written."""
    column = torch.arange(logits.shape[1], device=logits.device)
    live = column < ends.unsqueeze(1)
    if starts is not None:
        live &= column >= starts.unsqueeze(1)
    if out is None:
        return logits.masked_fill_(~live, float("-inf"))
    if not keep:
        out.fill_(float("-inf"))
    target = out[: logits.shape[0], : logits.shape[1]]
    target.copy_(torch.where(live, logits, target))
    return out


def _require(name: str, value: object, accepted: object) -> None:
    if value != accepted:
        raise ArgumentError(name, value, str(accepted))


MODULES: dict[str, dict[str, object]] = {
    "aiter": {
        "dtypes": dtypes,
        "rope_rotate_activation": rope_rotate_activation,
        "rmsnorm_rope_rotate_activation_fp4quant_kvcache": rmsnorm_rope_rotate_activation_fp4quant_kvcache,
    },
    "aiter.ops.flydsl": {
        "flydsl_pa_mqa_logits_fp4": flydsl_pa_mqa_logits_fp4,
        "flydsl_pa_mqa_logits_fp4_prefill": flydsl_pa_mqa_logits_fp4_prefill,
        "make_fp4_mqa_plan": make_fp4_mqa_plan,
    },
    "aiter.ops.flydsl.kernels.mqa_logits.pa_mqa_logits_fp4_prefill": {
        "CTA_INFO_WIDTH": aiter_schedules.CTA_INFO_WIDTH,
        "_prefill_cta_info_kernel": aiter_schedules.prefill_cta_info,
        "compute_prefill_schedule": aiter_schedules.compute_prefill_schedule,
    },
}
"""Where AITER has each name."""

__all__ = [
    "FP4X2",
    "MODULES",
    "Fp4MqaPlan",
    "dtypes",
    "flydsl_pa_mqa_logits_fp4",
    "flydsl_pa_mqa_logits_fp4_prefill",
    "make_fp4_mqa_plan",
    "rmsnorm_rope_rotate_activation_fp4quant_kvcache",
    "rope_rotate_activation",
]
