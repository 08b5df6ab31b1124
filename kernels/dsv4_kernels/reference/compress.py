"""The compressors on torch: pooling by the definition's order, the state of open entries, and what is stored."""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import exponential
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.pool import IndexPool
from dsv4_kernels.pooling import Compressor, TokenRuns
from dsv4_kernels.reference import quantize
from dsv4_kernels.reference.kv_rows import angles, rms_norm, rope_tail, store_kv, to_bfloat16

LEAST = torch.finfo(torch.float32).min


def compress_tokens(compressor: Compressor, projected: Tensor, runs: TokenRuns) -> Tensor:
    """See `compress_ops.compress_tokens`."""
    return _latents(compressor, projected, runs, runs.closing(compressor.pooling.ratio).nonzero().view(-1))


def compress_kv(
    pool: KVPool, compressor: Compressor, projected: Tensor, cos: Tensor, sin: Tensor, runs: TokenRuns, slots: Tensor
) -> Tensor:
    """See `compress_ops.compress_kv`."""
    ratio = compressor.pooling.ratio
    closing = runs.closing(ratio).nonzero().view(-1)
    latents = _latents(compressor, projected, runs, closing)
    stored = closing[slots[closing] >= 0]
    rows = rope_tail(latents[stored].float(), *angles(cos, sin, runs.positions[stored] - (ratio - 1)))
    store_kv(pool, rows, slots[stored])
    return latents


def compress_index_keys(
    pool: IndexPool, compressor: Compressor, projected: Tensor, cos: Tensor, sin: Tensor, runs: TokenRuns, slots: Tensor
) -> None:
    """See `compress_ops.compress_index_keys`."""
    ratio = compressor.pooling.ratio
    closing = runs.closing(ratio).nonzero().view(-1)
    pooled = _pooled(compressor, projected, runs, closing)
    firsts = runs.positions[closing] - (ratio - 1)
    weight, eps = compressor.norm_weight, compressor.norm_eps
    quantize.write_index_keys(pool, pooled, weight, eps, cos, sin, firsts, slots[closing])


def _latents(compressor: Compressor, projected: Tensor, runs: TokenRuns, closing: Tensor) -> Tensor:
    """bfloat16 [T, 512], zeros at rows that close nothing."""
    pooled = _pooled(compressor, projected, runs, closing).float()
    out = torch.zeros(runs.rows, compressor.dim, dtype=torch.bfloat16, device=projected.device)
    out[closing] = to_bfloat16(rms_norm(pooled, compressor.norm_weight.float(), compressor.norm_eps))
    return out


def _pooled(compressor: Compressor, projected: Tensor, runs: TokenRuns, closing: Tensor) -> Tensor:
    """The entries that `closing` rows complete, bfloat16 [n, dim]; then the state takes the call's tokens."""
    if compressor.ring is None:
        return to_bfloat16(projected[closing].float())
    pooled = projected.new_empty(0, compressor.dim, dtype=torch.bfloat16)
    if closing.numel():
        pooled = to_bfloat16(_pool(compressor, *_window(compressor, compressor.ring, projected, runs, closing)))
    _keep(compressor.ring, projected, runs)
    return pooled


def _window(
    compressor: Compressor, ring: Tensor, projected: Tensor, runs: TokenRuns, closing: Tensor
) -> tuple[Tensor, Tensor]:
    """Values and gates float32 [n, window, dim] of the tokens of each entry, oldest first; those that never were have
    the value 0 and the gate -inf.
    """
    of, dim = compressor.pooling, compressor.dim
    age = torch.arange(of.window - 1, -1, -1, device=ring.device)
    row, position = closing[:, None] - age, runs.positions[closing, None] - age
    given = row >= runs.first[closing, None]
    held = ring[runs.requests[closing, None], position.clamp(min=0) % ring.shape[1]]
    held[given] = projected[row[given]].view(-1, 2, of.series * dim)
    if compressor.ape is not None:
        held[:, :, 1] += compressor.ape[torch.arange(of.window, device=ring.device) % of.ratio]
    if of.series > 1:
        # The older half of the window is of the series for the next entry, the younger of that for its own.
        early = of.window // 2
        held = torch.cat([held[:, :early, :, :dim], held[:, early:, :, dim:]], 1)
    values, gates = held.unbind(2)
    missing = (position < 0).unsqueeze(-1)
    return values.masked_fill(missing, 0.0), gates.masked_fill(missing, -torch.inf)


def _pool(compressor: Compressor, values: Tensor, gates: Tensor) -> Tensor:
    """Softmax-weighted sums over the window: [n, window, dim] to [n, dim].

    The largest gate so far has the weight 1; a larger one scales down what was summed before.
    """
    n, window, dim = values.shape
    parts = compressor.pooling.parts
    values, gates = (t.reshape(n, parts, window // parts, dim).transpose(0, 2) for t in (values, gates))
    tops = gates.nan_to_num(LEAST, torch.inf, LEAST).cummax(0).values
    tops = torch.cat([torch.full_like(tops[:1], LEAST), tops])
    less, larger = _exp_minus((gates - tops[:-1]).abs()), gates > tops[:-1]
    shrunk, own = torch.where(larger, less, 1.0), torch.where(larger, 1.0, less)
    weight, total = own[0], 0.0 + values[0] * own[0]
    for j in range(1, window // parts):
        weight, total = weight * shrunk[j] + own[j], total * shrunk[j] + values[j] * own[j]
    top = tops[-1].amax(0)
    scale = _exp_minus(top - tops[-1])
    return (_halved(total * scale) / _halved(weight * scale)).masked_fill(top == torch.inf, torch.nan)


def _exp_minus(a: Tensor) -> Tensor:
    """e^-a of a >= 0; NaN of NaN."""
    t = (a * exponential.LOG2E).clamp(max=exponential.LIMIT)
    rounded = t + exponential.ROUNDER
    f = t - (rounded - exponential.ROUNDER)
    p = torch.full_like(f, exponential.COEFFICIENTS[0])
    for c in exponential.COEFFICIENTS[1:]:
        p = p * f + c
    return p * ((exponential.BITS - rounded.view(torch.int32)) << 23).view(torch.float32)


def _halved(x: Tensor) -> Tensor:
    """Sum of [parts, n, dim] over the parts, neighbours first."""
    while x.shape[0] > 1:
        x = x[0::2] + x[1::2]
    return x[0]


def _keep(ring: Tensor, projected: Tensor, runs: TokenRuns) -> None:
    """The last tokens of each run, as many as the ring takes, go to their places."""
    row = torch.arange(runs.rows, device=ring.device)
    kept = ((runs.requests >= 0) & (runs.stop - row <= ring.shape[1])).nonzero().view(-1)
    ring[runs.requests[kept], runs.positions[kept] % ring.shape[1]] = projected[kept].view(-1, *ring.shape[2:])
