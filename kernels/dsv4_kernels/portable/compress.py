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
from dsv4_kernels.portable.kv_store import kv_constants, native, paired

WARPS = {2: 1, 4: 2, 128: 8}
"""By ratio: those of a program, which pools one entry."""

NO_LAYOUT: dict[str, Any] = {"OF": V41_FP4, "PAGE": 1, "ALIGNED": True}
"""Constants of kernels that store nothing."""


def compress_tokens(compressor: Compressor, projected: Tensor, runs: TokenRuns) -> Tensor:
    """See `compress_ops.compress_tokens`."""
    # What is not stored has neither angles, slots nor pages; their pointers are never followed.
    nowhere = (projected, projected, runs.requests, projected, 0, 1, 0, 0)
    constants = NO_LAYOUT | {"NATIVE": native(projected.device), "STORE": False}
    return _launch(compressor, projected, runs, nowhere, constants)


def compress_kv(
    pool: KVPool, compressor: Compressor, projected: Tensor, cos: Tensor, sin: Tensor, runs: TokenRuns, slots: Tensor
) -> Tensor:
    """See `compress_ops.compress_kv`."""
    if cos.stride(0) != sin.stride(0):
        cos, sin = cos.contiguous(), sin.contiguous()
    places = (cos, sin, slots, pool.pages, pool.slots, cos.shape[0], cos.stride(0), pool.page_stride)
    return _launch(compressor, projected, runs, places, kv_constants(pool) | {"STORE": True})


def one_launch(compressor: Compressor, runs: TokenRuns) -> bool:
    """Whether no row that a call puts into the state lies where another row of the call still reads."""
    return runs.longest <= 1 + compressor.drafts


def keep_tokens(compressor: Compressor, projected: Tensor, runs: TokenRuns) -> None:
    """The launch by which the state takes runs that are longer than its spare room."""
    ring = compressor.ring
    assert ring is not None
    keep_kernel[(runs.rows,)](
        projected,
        ring,
        runs.requests,
        runs.positions,
        runs.stop,
        ring.shape[0],
        ring.shape[1],
        projected.stride(0),
        ring.stride(0),
        COLUMNS=2 * ring.shape[3],
        num_warps=4,
        enable_fp_fusion=False,
    )


def _launch(
    compressor: Compressor,
    projected: Tensor,
    runs: TokenRuns,
    places: tuple[Tensor, Tensor, Tensor, Tensor, int, int, int, int],
    constants: dict[str, Any],
) -> Tensor:
    """`places`: cos, sin, slots, pages, how many slots and positions there are, strides of angles and pages."""
    latents = torch.empty(runs.rows, WIDTH, dtype=torch.bfloat16, device=projected.device)
    if not runs.rows:
        return latents
    cos, sin, slots, pages, slot_count, positions, stride_angle, page_stride = places
    of, ring = compressor.pooling, compressor.ring
    if ring is None:
        at_once = ROWS[constants["OF"].code]
        single_kernel[(triton.cdiv(runs.rows, at_once),)](
            projected,
            runs.requests,
            runs.positions,
            compressor.norm_weight,
            latents.view(torch.int32),
            cos,
            sin,
            slots,
            pages,
            runs.rows,
            slot_count,
            positions,
            projected.stride(0),
            stride_angle,
            page_stride,
            compressor.norm_eps,
            R=at_once,
            PAIRED=paired(projected),
            WIDE=wide(compressor.norm_weight),
            **constants,
            num_warps=1,
            enable_fp_fusion=False,
        )
        return latents
    pooled_kernel[(runs.rows,)](
        projected,
        ring,
        projected if compressor.ape is None else compressor.ape,
        runs.requests,
        runs.positions,
        runs.first,
        compressor.norm_weight,
        latents.view(torch.int32),
        cos,
        sin,
        slots,
        pages,
        ring.shape[0],
        ring.shape[1],
        slot_count,
        positions,
        projected.stride(0),
        ring.stride(0),
        stride_angle,
        page_stride,
        compressor.norm_eps,
        int(one_launch(compressor, runs)),
        RATIO=of.ratio,
        WINDOW=of.window,
        PARTS=of.parts,
        HAS_APE=compressor.ape is not None,
        WIDE=wide(compressor.norm_weight),
        **constants,
        num_warps=WARPS[of.ratio],
        enable_fp_fusion=False,
    )
    if not one_launch(compressor, runs):
        keep_tokens(compressor, projected, runs)
    return latents
