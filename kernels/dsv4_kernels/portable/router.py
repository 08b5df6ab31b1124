"""The router in Triton: a split-K product in tiles of a fixed shape, and a gate of one program a row."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from dsv4_kernels.portable.kv_store import NATIVE, native
from dsv4_kernels.portable.softplus import sqrt_softplus
from dsv4_kernels.router import MAX_TOPK
from dsv4_kernels.softplus import LEAST_SUM
from dsv4_kernels.triton_launch import launch

ROWS = 16
"""Rows of a tile in every batch: another height could be another matrix instruction, with another order of summing."""

FEW = 512
"""Experts, or outputs of another product, that are few for a GPU's processors."""

MULTIPLE = 16
"""Values that a row's length and the distance of two rows are a multiple of, for Triton to know both."""

LEAST = tl.constexpr(LEAST_SUM)
LANES = tl.constexpr(MAX_TOPK)
LOWEST = tl.constexpr(-(2**63))


@triton.jit(do_not_specialize=["rows", "tiles"])
def _router_partials_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    rows,
    tiles,
    experts,
    hidden,
    stride_x,
    stride_weight,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    SPLIT: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """`tiles` tiles of rows against the weights of EXPERTS in one part, which are read once."""
    expert = tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS)
    part = tl.program_id(1)
    d = part * SPLIT + tl.arange(0, SPLIT)
    live = (expert < experts)[None, :]
    w_at = expert.to(tl.int64)[None, :] * stride_weight + d[:, None]
    w = tl.load(weight_ptr + w_at, mask=live & (d < hidden)[:, None], other=0.0)
    if INTERPRETED:
        # Its product takes the bits of bfloat16 for integers.
        w = w.to(tl.float32)
    first = tl.program_id(2) * tiles
    for tile in range(first, tl.minimum(first + tiles, tl.cdiv(rows, ROWS))):
        row = tile * ROWS + tl.arange(0, ROWS)
        x_at = row.to(tl.int64)[:, None] * stride_x + d[None, :]
        x = tl.load(x_ptr + x_at, mask=(row < rows)[:, None] & (d < hidden)[None, :], other=0.0)
        if INTERPRETED:
            x = x.to(tl.float32)
        total = tl.dot(x, w, input_precision="ieee", out_dtype=tl.float32)
        at = (part.to(tl.int64) * rows + row)[:, None] * experts + expert[None, :]
        tl.store(out_ptr + at, total, mask=(row < rows)[:, None] & live)


@triton.jit
def _logits(partials_ptr, at, mask, splits, stride):
    total = tl.load(partials_ptr + at, mask=mask, other=0.0)
    # A pointer that is moved: part * stride could pass 2**31.
    for _ in range(1, splits):
        partials_ptr += stride
        total += tl.load(partials_ptr + at, mask=mask, other=0.0)
    return total


@triton.jit
def _halved(x, HALF: tl.constexpr):
    return tl.sum(tl.reshape(x, (2, HALF)), axis=0)


@triton.jit
def _tree_sum_32(x):
    x = _halved(_halved(_halved(_halved(x, 16), 8), 4), 2)
    return tl.sum(x, axis=0)


@triton.jit
def _router_gate_kernel(
    partials_ptr,
    bias_ptr,
    weights_ptr,
    experts_ptr,
    stride,
    experts,
    splits,
    routed_scaling,
    E: tl.constexpr,
    K: tl.constexpr,
    BIASED: tl.constexpr,
    RENORMALISE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, E)
    live = e < experts
    logit = _logits(partials_ptr, row * experts + e, live, splits, stride)
    choice = sqrt_softplus(logit)
    if BIASED:
        choice += tl.load(bias_ptr + e, mask=live, other=0.0)
    choice = tl.where((logit != logit) | (choice != choice), float("-inf"), choice)
    bits = tl.where(choice == 0.0, 0.0, choice).to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = tl.where(live, (order.to(tl.int64) << 32) | (0xFFFFFFFF - e.to(tl.int64)), LOWEST)
    j = tl.arange(0, LANES)
    chosen = tl.zeros((LANES,), tl.int32)
    for i in tl.static_range(K):
        best = tl.max(key, axis=0)
        key = tl.where(key == best, LOWEST, key)
        chosen = tl.where(j == i, (0xFFFFFFFF - (best & 0xFFFFFFFF)).to(tl.int32), chosen)
    # Their few partials again, from the cache: cheaper than to look each score up by a reduction.
    logit = _logits(partials_ptr, row * experts + chosen, j < K, splits, stride)
    weight = tl.where((j < K) & (logit == logit), sqrt_softplus(logit), 0.0)
    scaled = weight * routed_scaling
    if RENORMALISE:
        scaled = tl.div_rn(scaled, tl.maximum(_tree_sum_32(weight), LEAST))
    tl.store(weights_ptr + row * K + j, scaled, mask=j < K)
    tl.store(experts_ptr + row * K + j, chosen, mask=j < K)


def router_partials(x: Tensor, weight: Tensor, split: int) -> Tensor:
    """See `router.router_partials`."""
    x, weight = aligned_rows(x), aligned_rows(weight)
    (rows, hidden), experts = x.shape, weight.shape[0]
    parts = triton.cdiv(hidden, split)
    out = torch.empty(parts, rows, experts, dtype=torch.float32, device=x.device)
    at_once, tiles = shape(rows, experts)
    if rows:
        arguments = {
            "x_ptr": x,
            "weight_ptr": weight,
            "out_ptr": out,
            "rows": rows,
            "tiles": tiles,
            "experts": experts,
            "hidden": hidden,
            "stride_x": x.stride(0),
            "stride_weight": weight.stride(0),
        }
        constants = {"ROWS": ROWS, "EXPERTS": at_once, "SPLIT": split, "INTERPRETED": triton.knobs.runtime.interpret}
        grid = triton.cdiv(experts, at_once), parts, triton.cdiv(rows, ROWS * tiles)
        nvidia = native(x.device) == NATIVE["sm89"]
        launch(_router_partials_kernel, grid, arguments, constants, warps(at_once, nvidia=nvidia))
    return out


def router_gate(
    partials: Tensor, bias: Tensor | None, k: int, routed_scaling: float, renormalise: bool
) -> tuple[Tensor, Tensor]:
    """See `router.router_gate`."""
    splits, rows, experts = partials.shape
    weights = torch.empty(rows, k, dtype=torch.float32, device=partials.device)
    chosen = torch.empty(rows, k, dtype=torch.int32, device=partials.device)
    if rows:
        arguments = {
            "partials_ptr": partials,
            "bias_ptr": partials if bias is None else bias,
            "weights_ptr": weights,
            "experts_ptr": chosen,
            "stride": partials.stride(0),
            "experts": experts,
            "splits": splits,
            "routed_scaling": routed_scaling,
        }
        constants = {"E": lanes(experts), "K": k, "BIASED": bias is not None, "RENORMALISE": renormalise}
        launch(_router_gate_kernel, (rows,), arguments, constants, 1)
    return weights, chosen


def shape(rows: int, experts: int) -> tuple[int, int]:
    """Experts and tiles of rows of a program. Neither changes a result: a tile's sums do not depend on them.

    The fastest of those tried on an H200: few experts want many programs, many want weights that are read once.
    """
    at_once, most = (32, 4) if experts <= FEW else (64, 16)
    return at_once, min(triton.cdiv(rows, ROWS), most)


def warps(at_once: int, *, nvidia: bool) -> int:
    """Warps of a program. Where each has a tile of 16 experts, AMD's compiler needs 96 registers, else 218."""
    return 4 if nvidia else at_once // 16


def aligned_rows(matrix: Tensor) -> Tensor:
    """`matrix` [n, hidden], or a copy with zeros behind its rows, so placed that 16 bytes are loaded at once.

    Loads of single values are right, but ptxas of CUDA 12.8, which Triton 3.6 brings, miscompiles what follows: seen on
    an H200, where 256 rows of 600 were read past the end of shared memory.
    """
    missing = -matrix.shape[1] % MULTIPLE
    if missing:
        return functional.pad(matrix, (0, missing))
    even = matrix.stride(0) % MULTIPLE == 0 and matrix.data_ptr() % 16 == 0
    return matrix if even else matrix.clone(memory_format=torch.contiguous_format)


def lanes(experts: int) -> int:
    """Places of a program of the gate, a power of two."""
    return max(int(triton.next_power_of_2(experts)), 64)
