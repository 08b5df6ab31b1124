"""Compressors on the portable kernels: what their launches take."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from dsv4_kernels.kv_layout import V41_FP4, WIDTH
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.pooling import Compressor, TokenRuns
from dsv4_kernels.portable.compress_kernels import keep_kernel, pooled_kernel, single_kernel
from dsv4_kernels.portable.kv_norm_rope import ROWS, wide
from dsv4_kernels.portable.kv_store import NATIVE, Machine, kv_constants, native, paired
from dsv4_kernels.triton_launch import launch

WARPS = {2: 1, 4: 2, 128: 8}
"""By ratio: those of a program, which pools an entry at a time."""

BOUNDED = {2: (1, None), 4: (2, 80), 128: (16, 64)}
"""By ratio, on NVIDIA's machines: warps, and the most registers of a thread, the fastest of those tried on an H200."""

ROWS_AT_ONCE = {2: 8, 4: 4, 128: 32}
"""By ratio: rows of a program where runs are long, so that most programs have an entry to pool, and few must begin."""

SINGLE_ROWS_BOUNDED = 2
"""Rows of a program of ratio 1 on NVIDIA's machines; elsewhere as many as of `kv_norm_rope`."""

KEPT_AT_ONCE, KEEP_WARPS = 16, 4
"""Rows and warps of a program that does no more than put tokens into the state."""

NO_LAYOUT: dict[str, Any] = {"OF": V41_FP4, "PAGE": 1, "ALIGNED": True}
"""Constants of kernels that store nothing."""


def compress_tokens(
    compressor: Compressor, projected: Tensor, runs: TokenRuns, machine: Machine | None = None
) -> Tensor:
    """See `compress_ops.compress_tokens`; `machine` as in `kv_store.store_kv`."""
    of_machine = native(projected.device) if machine is None else NATIVE[machine]
    # What is not stored has neither angles, slots nor pages; these pointers are never followed.
    nowhere = dict.fromkeys(("cos_ptr", "sin_ptr", "pages_ptr"), projected) | {"slots_ptr": runs.requests}
    numbers = {"slots": 0, "limit": 1, "stride_angle": 0, "page_stride": 0}
    return _launch(compressor, projected, runs, nowhere | numbers, NO_LAYOUT | {"NATIVE": of_machine, "STORE": False})


def compress_kv(
    pool: KVPool,
    compressor: Compressor,
    projected: Tensor,
    cos: Tensor,
    sin: Tensor,
    runs: TokenRuns,
    slots: Tensor,
    machine: Machine | None = None,
) -> Tensor:
    """See `compress_ops.compress_kv`; `machine` as in `kv_store.store_kv`."""
    if cos.stride(0) != sin.stride(0):
        cos, sin = cos.contiguous(), sin.contiguous()
    places = {
        "cos_ptr": cos,
        "sin_ptr": sin,
        "slots_ptr": slots,
        "pages_ptr": pool.pages,
        "slots": pool.slots,
        "limit": cos.shape[0],
        "stride_angle": cos.stride(0),
        "page_stride": pool.page_stride,
    }
    return _launch(compressor, projected, runs, places, kv_constants(pool, machine) | {"STORE": True})


def one_launch(compressor: Compressor, runs: TokenRuns) -> bool:
    """Whether no row that a call puts into the state lies where another row of the call still reads."""
    return runs.longest <= 1 + compressor.drafts


def state_arguments(compressor: Compressor, projected: Tensor, runs: TokenRuns) -> dict[str, Any]:
    """What kernels take that read tokens of a call and its state."""
    ring = compressor.ring
    assert ring is not None
    return {
        "projected_ptr": projected,
        "ring_ptr": ring,
        "requests_ptr": runs.requests,
        "positions_ptr": runs.positions,
        "rows": runs.rows,
        "requests": ring.shape[0],
        "tokens": ring.shape[1],
        "stride_projected": projected.stride(0),
        "stride_ring": ring.stride(0),
    }


def pooling_arguments(compressor: Compressor, projected: Tensor, runs: TokenRuns) -> dict[str, Any]:
    """What kernels take that pool windows of tokens, beside what they do with an entry."""
    return state_arguments(compressor, projected, runs) | {
        "ape_ptr": projected if compressor.ape is None else compressor.ape,
        "first_ptr": runs.first,
        "weight_ptr": compressor.norm_weight,
        "eps": compressor.norm_eps,
    }


def pooling_constants(compressor: Compressor, runs: TokenRuns) -> dict[str, Any]:
    """Compile-time choices of such kernels. R, rows of a program, is 1 where the state takes the rows of the call, and
    every one of them may close an entry; longer runs go to the state by a launch of their own.
    """
    of = compressor.pooling
    rows = 1 if one_launch(compressor, runs) else ROWS_AT_ONCE[of.ratio]
    return {
        "R": rows,
        "RATIO": of.ratio,
        "WINDOW": of.window,
        "PARTS": of.parts,
        "HAS_APE": compressor.ape is not None,
    }


def keep_tokens(compressor: Compressor, projected: Tensor, runs: TokenRuns) -> None:
    """The launch by which the state takes runs that are longer than its spare room."""
    arguments = state_arguments(compressor, projected, runs) | {"stop_ptr": runs.stop}
    constants = {"R": KEPT_AT_ONCE, "COLUMNS": 2 * compressor.pooling.series * compressor.dim}
    launch(keep_kernel, (triton.cdiv(runs.rows, KEPT_AT_ONCE),), arguments, constants, KEEP_WARPS)


def _launch(
    compressor: Compressor,
    projected: Tensor,
    runs: TokenRuns,
    places: dict[str, Any],
    constants: dict[str, Any],
) -> Tensor:
    """`places`: where angles, slots and pages are, and how many; `constants` of the layout and the machine."""
    latents = torch.empty(runs.rows, WIDTH, dtype=torch.bfloat16, device=projected.device)
    if not runs.rows:
        return latents
    places = places | {"latent_ptr": latents.view(torch.int32)}
    constants = constants | {"WIDE": wide(compressor.norm_weight)}
    if not compressor.pooling.gated:
        _launch_single(compressor, projected, runs, places, constants)
        return latents
    arguments = pooling_arguments(compressor, projected, runs)
    choices = pooling_constants(compressor, runs)
    ratio = compressor.pooling.ratio
    warps, registers = BOUNDED[ratio] if constants["NATIVE"] == NATIVE["sm89"] else (WARPS[ratio], None)
    programs = triton.cdiv(runs.rows, choices["R"])
    launch(pooled_kernel, (programs,), arguments | places, choices | constants, warps, registers)
    if not one_launch(compressor, runs):
        keep_tokens(compressor, projected, runs)
    return latents


def _launch_single(
    compressor: Compressor, projected: Tensor, runs: TokenRuns, places: dict[str, Any], constants: dict[str, Any]
) -> None:
    arguments = {
        "projected_ptr": projected,
        "requests_ptr": runs.requests,
        "positions_ptr": runs.positions,
        "weight_ptr": compressor.norm_weight,
        "rows": runs.rows,
        "stride_projected": projected.stride(0),
        "eps": compressor.norm_eps,
    }
    rows = SINGLE_ROWS_BOUNDED if constants["NATIVE"] == NATIVE["sm89"] else ROWS[constants["OF"].code]
    choices = constants | {"R": rows, "PAIRED": paired(projected)}
    launch(single_kernel, (triton.cdiv(runs.rows, rows),), arguments | places, choices, 1)
