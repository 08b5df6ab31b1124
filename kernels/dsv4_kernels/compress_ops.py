"""Operations that compress tokens: into latents, into main KV rows, into index keys.

A row of a call closes an entry where its position p has (p + 1) % ratio == 0. What an entry is, bit for bit in every
backend, whatever else is in the call and however its tokens were cut into calls:

- The gate of a token is its gate as projected plus `ape` at its position modulo the ratio, in float32.
- Entries are softmax-weighted sums in float32, in the order of `Pooling`. The exponential is that of `exponential.py`,
  so a weight below 2^-127 of the largest is 0. Tokens before position 0 do not count.
- A gate of -inf has the weight 0. A channel is NaN if a gate is NaN or +inf or all gates are -inf, if a value is NaN,
  if an infinite value has the weight 0, and if infinities of both signs meet.
- The entry is rounded to bfloat16. RMSNorm computes in float32 with the sum of squares adding neighbours first, and
  rounds to bfloat16: that is the latent. RoPE of position p - ratio + 1 computes in float32 and rounds to bfloat16.
  DeepSeek's published code rounds at these places. Then the row is quantised as by `store_kv`.
- NaN is 0x7FC0 in a latent; a row with a NaN is all NaN after the norm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsv4_kernels import backends, check
from dsv4_kernels.counters import Phase
from dsv4_kernels.errors import ArgumentError
from dsv4_kernels.kv_layout import ROPE_WIDTH, WIDTH
from dsv4_kernels.kv_pool import KVPool
from dsv4_kernels.layout import HEAD_DIM
from dsv4_kernels.pool import IndexPool
from dsv4_kernels.pooling import Compressor, TokenRuns


def compress_tokens(
    compressor: Compressor, projected: Tensor, runs: TokenRuns, *, phase: Phase | None = None
) -> Tensor:
    """bfloat16 [T, 512]: the latents (normalised, before RoPE) of entries that rows close, zeros at all other rows.

    `projected` [T, compressor.pooling.width(512)]: values, then gates, in float32; for ratio 1 values of any float. The
    state in `compressor.ring` takes the tokens of every run, the last ones if they are more than it holds.
    """
    _tokens(compressor, projected, runs, WIDTH, check.device_of("projected", projected))
    return backends.run("compress_tokens", phase, projected.device).compress_tokens(compressor, projected, runs)


def compress_kv(
    pool: KVPool,
    compressor: Compressor,
    projected: Tensor,
    cos: Tensor,
    sin: Tensor,
    runs: TokenRuns,
    slots: Tensor,
    *,
    phase: Phase | None = None,
) -> Tensor:
    """`compress_tokens`, and in the same launch RoPE and store of the entries; returns the latents.

    `slots` int64 [T]: where the entry that a row closes goes, -1 to store none; at rows that close nothing it is not
    looked at. Slots of entries of one call must differ. `cos` and `sin` float [max_position, 32], for position
    p - ratio + 1 of an entry that closes at p. A GPU does not report positions and slots that are out of bounds.

    Runs longer than 1 + `compressor.drafts` rows are final (prefill): none of their rows may be rejected afterwards,
    and the state takes them in a launch of its own.
    """
    _tokens(compressor, projected, runs, WIDTH, pool.device)
    _places(compressor, cos, sin, runs, slots, pool.slots, pool.device)
    backend = backends.run("compress_kv", phase, pool.device)
    return backend.compress_kv(pool, compressor, projected, cos, sin, runs, slots)


def compress_index_keys(
    pool: IndexPool,
    compressor: Compressor,
    projected: Tensor,
    cos: Tensor,
    sin: Tensor,
    runs: TokenRuns,
    slots: Tensor,
    *,
    phase: Phase | None = None,
) -> None:
    """Entries of 128 channels into index keys, in one launch: pooled, rounded to bfloat16, then as `write_index_keys`.

    Arguments are those of `compress_kv`; `projected` [T, compressor.pooling.width(128)].
    """
    if not compressor.pooling.gated:
        raise ArgumentError("compressor.pooling", repr(compressor.pooling.name), "c2, c4 or c128; c1 pools nothing")
    _tokens(compressor, projected, runs, HEAD_DIM, pool.device)
    _places(compressor, cos, sin, runs, slots, pool.tokens, pool.device)
    backend = backends.run("compress_index_keys", phase, pool.device)
    backend.compress_index_keys(pool, compressor, projected, cos, sin, runs, slots)


def _tokens(compressor: Compressor, projected: Tensor, runs: TokenRuns, dim: int, device: torch.device) -> None:
    if compressor.dim != dim:
        raise ArgumentError("compressor.norm_weight.shape", [compressor.dim], f"[{dim}]")
    check.tensor("compressor.norm_weight", compressor.norm_weight, check.FLOATS, (dim,), device)
    dtypes = (torch.float32,) if compressor.pooling.gated else check.FLOATS
    check.tensor("projected", projected, dtypes, (runs.rows, compressor.pooling.width(dim)), device)
    check.tensor("runs.requests", runs.requests, (torch.int64,), (runs.rows,), device)
    if compressor.ring is not None:
        check.within("runs.requests", runs.requests, -1, compressor.ring.shape[0] - 1)


def _places(
    compressor: Compressor, cos: Tensor, sin: Tensor, runs: TokenRuns, slots: Tensor, count: int, device: torch.device
) -> None:
    check.tensor("cos", cos, check.FLOATS, (None, ROPE_WIDTH // 2), device)
    check.tensor("sin", sin, check.FLOATS, (cos.shape[0], ROPE_WIDTH // 2), device)
    check.tensor("slots", slots, (torch.int64,), (runs.rows,), device)
    if device.type != "cpu":
        return
    ratio = compressor.pooling.ratio
    closing = runs.closing(ratio)
    check.within("slots", slots[closing], -1, count - 1)
    check.within("runs.positions", runs.positions[closing & (slots >= 0)], 0, cos.shape[0] + ratio - 2)
