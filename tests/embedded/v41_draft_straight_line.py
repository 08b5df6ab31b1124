"""One block of a DSpark drafter of DeepSeek-V4.1 in straight-line float64: the model's oracle with other keys."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from embedded import v41_straight_line_attention as attention
from embedded.v41_straight_line import StraightLine
from embedded.v41_straight_line_attention import PUBLISHED
from embedded.v41_straight_line_formats import exact

ENGINE = dataclasses.replace(PUBLISHED, activation=exact)
"""The embedded engine holds activations in float32."""


class DraftStraightLine(StraightLine):
    """`weights` are the model's and the drafter's under their own names, `config` is their config.json."""

    def __init__(self, weights: dict[str, Tensor], config: dict[str, Any]) -> None:
        named = dict(weights)
        for name, tensor in weights.items():
            if name.startswith("mtp."):
                stage, rest = name.removeprefix("mtp.").split(".", 1)
                of_layer = rest.startswith(("attn", "ffn", "hc_"))
                named[f"layers.{stage}.{rest}" if of_layer else rest] = tensor
        stages = {"num_hidden_layers": config["n_mtp_layers"], "engram_layer_ids": []}
        chosen = {"num_experts_per_tok": config["dspark_num_experts_per_tok"]}
        super().__init__(named, config | stages | chosen, [], ENGINE)
        self._context: dict[int, Tensor] = {}

    def block_logits(self, hidden: Tensor, first: int, anchor: int) -> Tensor:
        """Logits of a block's rows before the Markov head, float64 [block, vocab].

        `hidden` [n, targets * hidden] are the target layers' states of positions first to first + n - 1; `anchor` is
        the token at first + n.
        """
        size, window = self.config["dspark_block_size"], self.config["sliding_window"]
        start, stages = first + len(hidden), range(self.config["num_hidden_layers"])
        main = self._norm(hidden.double() @ self.weights["main_proj.weight"].T, "main_norm.weight")[-window:]
        turn = attention.turns(self.config, torch.arange(start - len(main), start), False)
        self._context = {stage: self._window(f"layers.{stage}.attn.", main, turn) for stage in stages}
        self.positions = torch.arange(start, start + size)
        tokens = [anchor, *[self.config["dspark_noise_token_id"]] * (size - 1)]
        streams = self.weights["embed.weight"][tokens][:, None].repeat(1, self.config["hc_mult"], 1)
        before = torch.zeros(size, self.config["hc_mult"], dtype=torch.float64)
        before[:, 0] = 1
        for stage in stages:
            streams, before = self._layer(stage, streams, before)
        return self._norm(self._collapsed(streams, before), "norm.weight") @ self.weights["head.weight"].T

    def markov_bias(self, before: int) -> Tensor:
        """What the token before adds to a row's logits, float64 [vocab]."""
        return self.weights["markov_head.head.weight"] @ self.weights["markov_head.embed.weight"][before]

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        prefix, groups = f"layers.{layer}.attn.", self.config["o_groups"]
        turn = attention.turns(self.config, self.positions, False)
        low = self._norm(x @ self.weights[prefix + "wq_a.weight"].T, prefix + "q_norm.weight")
        q = attention.rotate((low @ self.weights[prefix + "wq_b.weight"].T).reshape(len(x), -1, 512), turn)
        keys = torch.cat([self._context[layer], self._window(prefix, x, turn)])
        seen = torch.ones(len(x), len(keys), dtype=torch.bool)
        out = attention.attend(q, keys, seen, self.weights[prefix + "attn_sink"])
        out = attention.rotate(out, turn, inverse=True).reshape(len(x), groups, -1)
        inner = self.weights[prefix + "wo_a.weight"].reshape(groups, -1, out.shape[-1])
        return torch.einsum("tgd,grd->tgr", out, inner).flatten(1) @ self.weights[prefix + "wo_b.weight"].T
