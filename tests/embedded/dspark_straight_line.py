"""One block of a DSpark drafter of DeepSeek-V4 in straight-line float64, from the published description.

No ring, no batch, no cache: every key is computed anew from the hidden states of the whole text. It shares nothing
with the engine but the checkpoint, and with the model's oracle the formulas of the layers.
"""

from __future__ import annotations

from typing import Any

import torch

from embedded.straight_line import Weights, hyper, moe, norm, rotate


def block_logits(
    weights: Weights, config: dict[str, Any], hidden: torch.Tensor, first: int, anchor: int
) -> torch.Tensor:
    """Logits of a block's rows before the Markov head, float64 [block, vocab].

    `hidden` [n, targets * hidden] are the target layers' states of positions first to first + n - 1; `anchor` is the
    token at first + n.
    """
    w = {name: t.double() for name, t in weights.items()}
    config = config | {"num_experts_per_tok": config["dspark_num_experts_per_tok"]}
    size, start = config["dspark_block_size"], first + len(hidden)
    main = norm(hidden.double() @ w["mtp.0.main_proj.weight"].T, w["mtp.0.main_norm.weight"])
    tokens = [anchor, *[config["dspark_noise_token_id"]] * (size - 1)]
    streams = [w["embed.weight"][token].expand(4, -1) for token in tokens]
    for stage in range(config["n_mtp_layers"]):
        prefix = f"mtp.{stage}."
        context = [key(w, config, prefix, row, first + n) for n, row in enumerate(main)][-config["sliding_window"] :]
        mixes = [hyper(w, config, prefix + "hc_attn", row) for row in streams]
        inputs = [norm(mix[0] @ row, w[prefix + "attn_norm.weight"]) for mix, row in zip(mixes, streams, strict=True)]
        own = [key(w, config, prefix, x, start + n) for n, x in enumerate(inputs)]
        keys = torch.stack([*context, *own])
        outputs = [attend(w, config, prefix + "attn.", x, start + n, keys) for n, x in enumerate(inputs)]
        streams = [join(mix, out, row) for mix, out, row in zip(mixes, outputs, streams, strict=True)]
        mixes = [hyper(w, config, prefix + "hc_ffn", row) for row in streams]
        outputs = [
            moe(w, config, prefix + "ffn.", norm(mix[0] @ row, w[prefix + "ffn_norm.weight"]), token)
            for mix, row, token in zip(mixes, streams, tokens, strict=True)
        ]
        streams = [join(mix, out, row) for mix, out, row in zip(mixes, outputs, streams, strict=True)]
    return torch.stack([head(w, config, row) for row in streams])


def markov_bias(weights: Weights, config: dict[str, Any], before: int) -> torch.Tensor:
    """What the token before adds to a row's logits, float64 [vocab]."""
    prefix = f"mtp.{config['n_mtp_layers'] - 1}.markov_head."
    first, second = (weights[f"{prefix}markov_{name}.weight"].double() for name in ("w1", "w2"))
    return second @ first[before]


def key(w: Weights, config: dict[str, Any], prefix: str, x: torch.Tensor, position: int) -> torch.Tensor:
    row = norm(w[prefix + "attn.wkv.weight"] @ x, w[prefix + "attn.kv_norm.weight"])
    return rotate(row, position, config, 0)


def attend(
    w: Weights, config: dict[str, Any], prefix: str, x: torch.Tensor, position: int, keys: torch.Tensor
) -> torch.Tensor:
    latent = norm(w[prefix + "wq_a.weight"] @ x, w[prefix + "q_norm.weight"])
    q = rotate(norm((w[prefix + "wq_b.weight"] @ latent).view(-1, 512)), position, config, 0)
    scores = torch.cat([q @ keys.T / 512**0.5, w[prefix + "attn_sink"][:, None]], 1).softmax(-1)
    out = rotate(scores[:, :-1] @ keys, position, config, 0, sign=-1)
    groups = out.reshape(config["o_groups"], -1)
    low = torch.einsum("grd,gd->gr", w[prefix + "wo_a.weight"].view(config["o_groups"], -1, groups.shape[1]), groups)
    return w[prefix + "wo_b.weight"] @ low.reshape(-1)


def join(mix: tuple[torch.Tensor, ...], out: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return mix[1][:, None] * out + mix[2].T @ row


def head(w: Weights, config: dict[str, Any], row: torch.Tensor) -> torch.Tensor:
    last = f"mtp.{config['n_mtp_layers'] - 1}."
    mix = w[last + "hc_head_fn"] @ norm(row.reshape(-1)) * w[last + "hc_head_scale"] + w[last + "hc_head_base"]
    return w["head.weight"] @ norm((mix.sigmoid() + config["hc_eps"]) @ row, w[last + "norm.weight"])
