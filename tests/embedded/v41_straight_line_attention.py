"""Attention of DeepSeek-V4.1 over a whole sequence, from the published description: no cache, no pages.

Every function works on all tokens of one sequence in float64; `Rounding` says where values are rounded on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from embedded.v41_straight_line_formats import bfloat16, exact, groups_of, index_fp4, latent_fp4, window_fp8

Round = Callable[[Tensor], Tensor]
Config = dict[str, Any]


@dataclass(frozen=True)
class Rounding:
    """What happens to a value at each place of the published code; as they stand, the published roundings.

    `activation`: results of projections, norms, rotations and residual sums. `row`: a KV row after its norm and after
    its rotation. `key`: index keys and queries as projected, after their norm and after their rotation.
    `router`: what the router reads. `head_weight`: weights of index heads, before and after their scale. `window`,
    `latent`, `index`: what the caches hold. Scores are never rounded: engines hold them in float32.
    """

    activation: Round = bfloat16
    row: Round = bfloat16
    key: Round = bfloat16
    router: Round = bfloat16
    head_weight: Round = bfloat16
    window: Round = window_fp8
    latent: Round = latent_fp4
    index: Round = index_fp4


PUBLISHED = Rounding()
UNROUNDED = Rounding(exact, exact, exact, exact, exact, exact, exact, exact)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def turns(config: Config, positions: Tensor, compressed: bool) -> Tensor:
    """complex128 [T, 32]: by how much each pair turns. YaRN stretches the layers that read compressed KV."""
    half = int(config["qk_rope_head_dim"]) // 2
    theta = float(config["compress_rope_theta"] if compressed else config["rope_theta"])
    pair = torch.arange(half, dtype=torch.float64)
    frequency = theta ** (-pair / half)
    if compressed:
        scaling = config["rope_scaling"]
        span = scaling["original_max_position_embeddings"]

        def place(rotations: float) -> float:
            return half * math.log(float(span) / (rotations * 2 * math.pi)) / math.log(theta)

        low = max(math.floor(place(scaling["beta_fast"])), 0)
        high = min(math.ceil(place(scaling["beta_slow"])), 2 * half - 1)
        stretched = ((pair - low) / max(high - low, 1e-3)).clamp(0, 1)
        frequency = frequency * (stretched / scaling["factor"] + (1 - stretched))
    return torch.polar(torch.ones(1, dtype=torch.float64), positions.double()[:, None] * frequency)


def rotate(x: Tensor, turn: Tensor, inverse: bool = False) -> Tensor:
    """`x` [T, .., d] with its last 64 values turned in adjacent pairs; `turn` complex [T, 32]."""
    head, tail = x[..., : -2 * turn.shape[-1]], x[..., -2 * turn.shape[-1] :]
    turn = turn.conj() if inverse else turn
    turn = turn.to(torch.complex128).view(turn.shape[0], *[1] * (x.ndim - 2), -1)
    pairs = torch.view_as_complex(groups_of(tail.double(), 2))
    return torch.cat([head, torch.view_as_real(pairs * turn).flatten(-2)], -1)


def latents(x: Tensor, weights: dict[str, Tensor], ratio: int, eps: float, rounding: Rounding) -> Tensor:
    """[T // ratio, 512]: one latent for each complete group of `ratio` tokens, before RoPE.

    Ratio 1 is a projection. Ratio 2 weighs two tokens, per dimension, by the softmax of their gates. `weights` has
    wkv, norm, and wgate at ratio 2.
    """
    values = x @ weights["wkv"].T
    if ratio == 1:
        return rounding.row(norm(rounding.row(values), weights["norm"], eps))
    whole = len(x) // ratio * ratio
    values = values[:whole].reshape(-1, ratio, values.shape[1])
    share = (x @ weights["wgate"].T)[:whole].reshape(values.shape).softmax(1)
    return rounding.row(norm(rounding.row((values * share).sum(1)), weights["norm"], eps))


def index_keys(
    latent: Tensor, wk: Tensor, k_norm: Tensor, turn: Tensor, eps: float, rounding: Rounding = PUBLISHED
) -> Tensor:
    """[n, 128] keys of latents before RoPE; a key stands at the first token of its group."""
    keys = rounding.key(norm(rounding.key(latent @ wk.T), k_norm, eps))
    return rounding.index(rounding.key(rotate(keys, turn)))


def index_queries(q: Tensor, turn: Tensor, rounding: Rounding = PUBLISHED) -> Tensor:
    """[T, H, 128] queries as they are scored, of projected ones."""
    return rounding.index(rounding.key(rotate(rounding.key(q), turn)))


def index_scores(q: Tensor, keys: Tensor, head_weights: Tensor) -> Tensor:
    """[T, n]: rectified products of every head of q [T, H, 128] with every key, weighed by [T, H] and added."""
    total = torch.zeros(len(q), len(keys), dtype=torch.float64)
    for head in range(q.shape[1]):
        total += (q[:, head] @ keys.T).relu() * head_weights[:, head, None]
    return total


def best(scores: Tensor, count: int) -> Tensor:
    """bool like `scores` [T, n]: the `count` highest of a row that are above -inf; of equals the first."""
    order = scores.argsort(dim=-1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, True) & (scores > -torch.inf)


def block_scores(scores: Tensor, visible: Tensor, size: int) -> Tensor:
    """[T, blocks]: the best score of each block of `size` positions, infinite for a row's newest block.

    `scores` are -inf from `visible` [T] on.
    """
    padded = torch.nn.functional.pad(scores, (0, -scores.shape[1] % size), value=-torch.inf)
    most = groups_of(padded, size).amax(-1)
    newest = (visible - 1).div(size, rounding_mode="floor")
    most[torch.arange(most.shape[1]) == newest[:, None]] = torch.inf
    return most


def candidates(scores: Tensor, visible: Tensor, blocks: int, size: int) -> Tensor:
    """bool [T, n]: positions of the `blocks` best blocks of each row."""
    kept = best(block_scores(scores, visible, size), blocks)
    return kept.repeat_interleave(size, 1)[:, : scores.shape[1]]


def attend(q: Tensor, keys: Tensor, seen: Tensor, sink: Tensor) -> Tensor:
    """[T, H, 512]: softmax attention of q [T, H, 512] over the rows of keys that `seen` [T, n] allows, and a sink a
    head that takes weight and gives nothing."""
    out = torch.empty_like(q)
    for head in range(q.shape[1]):
        scores = (q[:, head] @ keys.T / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
        with_sink = torch.cat([scores, sink[head].expand(len(q), 1)], 1).softmax(-1)
        out[:, head] = with_sink[:, :-1] @ keys
    return out
