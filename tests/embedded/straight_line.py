"""One decode step of DeepSeek-V4 in straight-line float64, from the published description.

It shares nothing with the engine but the checkpoint, and what the engine stored for earlier tokens, which it takes
through callbacks: index keys and compressed rows of the pages, rows of the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import silu, softplus

from embedded.byte_formulas import fake_fp4, hadamard

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Stored:
    """What the caches hold: each maps a layer to float rows in order of position or entry."""

    window: Callable[[int], torch.Tensor]
    entries: Callable[[int], torch.Tensor]
    index_keys: Callable[[int], torch.Tensor]


def last_logits(weights: Weights, config: dict[str, Any], token: int, position: int, stored: Stored) -> torch.Tensor:
    """Logits of the token at `position`, float64 [vocab]."""
    w = {name: t.double() if t.is_floating_point() else t for name, t in weights.items()}
    streams = w["embed.weight"][token].expand(4, -1)
    for layer, ratio in enumerate(config["compress_ratios"]):
        prefix = f"layers.{layer}."
        pre, post, comb = hyper(w, config, prefix + "hc_attn", streams)
        x = norm(pre @ streams, w[prefix + "attn_norm.weight"])
        out = attention(w, config, prefix + "attn.", x, layer, ratio, position, stored)
        streams = post[:, None] * out + comb.T @ streams
        pre, post, comb = hyper(w, config, prefix + "hc_ffn", streams)
        x = norm(pre @ streams, w[prefix + "ffn_norm.weight"])
        streams = post[:, None] * moe(w, config, prefix + "ffn.", x, token) + comb.T @ streams
    flat = norm(streams.reshape(-1))
    pre = (w["hc_head_fn"] @ flat * w["hc_head_scale"] + w["hc_head_base"]).sigmoid() + config["hc_eps"]
    return w["head.weight"] @ norm(pre @ streams, w["norm.weight"])


def norm(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    scaled = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return scaled if weight is None else scaled * weight


def hyper(w: Weights, config: dict[str, Any], name: str, streams: torch.Tensor) -> tuple[torch.Tensor, ...]:
    eps = config["hc_eps"]
    mixes = w[name + "_fn"] @ norm(streams.reshape(-1))
    scale, base = w[name + "_scale"], w[name + "_base"]
    pre = (mixes[:4] * scale[0] + base[:4]).sigmoid() + eps
    post = 2 * (mixes[4:8] * scale[1] + base[4:8]).sigmoid()
    comb = (mixes[8:] * scale[2] + base[8:]).view(4, 4).softmax(-1) + eps
    comb = comb / (comb.sum(0, keepdim=True) + eps)
    for _ in range(config["hc_sinkhorn_iters"] - 1):
        comb = comb / (comb.sum(1, keepdim=True) + eps)
        comb = comb / (comb.sum(0, keepdim=True) + eps)
    return pre, post, comb


def moe(w: Weights, config: dict[str, Any], prefix: str, x: torch.Tensor, token: int) -> torch.Tensor:
    scores = softplus(w[prefix + "gate.weight"] @ x).sqrt()
    if prefix + "gate.tid2eid" in w:
        chosen = w[prefix + "gate.tid2eid"][token]
    else:
        chosen = (scores + w[prefix + "gate.bias"]).argsort(descending=True, stable=True)
        chosen = chosen[: config["num_experts_per_tok"]]
    share = scores[chosen] / scores[chosen].sum() * config["routed_scaling_factor"]
    limit = config["swiglu_limit"]

    def expert(name: str) -> torch.Tensor:
        gate, up = w[f"{prefix}{name}.w1.weight"] @ x, w[f"{prefix}{name}.w3.weight"] @ x
        return w[f"{prefix}{name}.w2.weight"] @ (silu(gate.clamp(max=limit)) * up.clamp(-limit, limit))

    total = expert("shared_experts")
    for s, e in zip(share, chosen, strict=True):
        total = total + s * expert(f"experts.{int(e)}")
    return total


def rotate(x: torch.Tensor, position: int, config: dict[str, Any], ratio: int, sign: int = 1) -> torch.Tensor:
    """RoPE on the last 64 dimensions by complex multiplication."""
    theta = config["compress_rope_theta"] if ratio else config["rope_theta"]
    pair = torch.arange(32, dtype=torch.float64)
    frequency = torch.tensor(theta, dtype=torch.float64).pow(-pair / 32)
    if ratio:
        scaling = config["rope_scaling"]
        span = scaling["original_max_position_embeddings"]

        def correction(turns: float) -> torch.Tensor:
            dim: torch.Tensor = 64 * torch.log(torch.tensor(span / (turns * 2 * torch.pi)))
            return dim.div(2 * math.log(theta))

        low, high = correction(scaling["beta_fast"]).floor().clamp(min=0), correction(scaling["beta_slow"]).ceil()
        blend = ((pair - low) / (high.clamp(max=63) - low)).clamp(0, 1)
        frequency = frequency * (blend / scaling["factor"] + 1 - blend)
    turn = torch.polar(torch.ones(32, dtype=torch.float64), sign * position * frequency)
    tail = torch.view_as_complex(x[..., -64:].reshape(*x.shape[:-1], 32, 2).contiguous())
    return torch.cat([x[..., :-64], torch.view_as_real(tail * turn).flatten(-2)], -1)


def attention(
    w: Weights, config: dict[str, Any], prefix: str, x: torch.Tensor, layer: int, ratio: int, p: int, stored: Stored
) -> torch.Tensor:
    latent = norm(w[prefix + "wq_a.weight"] @ x, w[prefix + "q_norm.weight"])
    q = rotate(norm((w[prefix + "wq_b.weight"] @ latent).view(-1, 512)), p, config, ratio)
    keys = stored.window(layer).double()
    if ratio:
        entries = stored.entries(layer).double()
        if ratio == 4:
            entries = entries[select(w, config, prefix + "indexer.", x, latent, p, stored.index_keys(layer))]
        keys = torch.cat([keys, entries])
    scores = torch.cat([q @ keys.T / 512**0.5, w[prefix + "attn_sink"][:, None]], 1).softmax(-1)
    out = rotate(scores[:, :-1] @ keys, p, config, ratio, sign=-1)
    groups = out.reshape(config["o_groups"], -1)
    low = torch.einsum("grd,gd->gr", w[prefix + "wo_a.weight"].view(config["o_groups"], -1, groups.shape[1]), groups)
    return w[prefix + "wo_b.weight"] @ low.reshape(-1)


def select(
    w: Weights, config: dict[str, Any], prefix: str, x: torch.Tensor, latent: torch.Tensor, p: int, keys: torch.Tensor
) -> torch.Tensor:
    """The indexer's choice among the stored keys; the query is quantised to FP4 like the product's."""
    q = rotate((w[prefix + "wq_b.weight"] @ latent).view(-1, 128), p, config, 4)
    dots = (fake_fp4(hadamard(q)).double() @ keys.double().T).relu()
    scores = (w[prefix + "weights_proj.weight"] @ x) @ dots
    return scores.argsort(descending=True, stable=True)[: config["index_topk"]]
