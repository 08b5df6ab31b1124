"""DeepSeek-V4.1 (text) over a whole sequence in straight-line float64, from the published description.

It shares nothing with the engine but the checkpoint. No cache, no pages, no chunks: every layer sees all tokens at
once, and what the published code writes to a cache is rounded where it is made. For exact comparisons it takes what an
engine stored instead of its own rows: two programs round a value on an edge between two codes to different sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from embedded import v41_straight_line_attention as attention
from embedded import v41_straight_line_engram as engram
from embedded.v41_straight_line_attention import PUBLISHED, Config, Rounding, norm

Kind = Literal["window", "entries", "keys"]
Stored = Callable[[Kind, int], Tensor]
"""What an engine stored in a layer: window rows of all tokens [T, 512], entries [n, 512], or index keys [n, 128]."""


@dataclass
class Shared:
    """What layers hand down: entries and index keys of the last KV source, and which entries each token takes."""

    entries: Tensor = field(default_factory=lambda: torch.empty(0, 512, dtype=torch.float64))
    keys: Tensor = field(default_factory=lambda: torch.empty(0, 128, dtype=torch.float64))
    chosen: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.bool))
    candidates: Tensor | None = None
    made: dict[tuple[Kind, int], Tensor] = field(default_factory=dict)
    choices: dict[int, Tensor] = field(default_factory=dict)
    """By index source, bool [T, entries]."""
    margins: dict[int, Tensor] = field(default_factory=dict)
    """By index source, for each token: the gap between the last taken and the first left, as a share of the highest."""


class StraightLine:
    """A checkpoint's tensors and its config.json; `compressed` gives each token id its compressed id.

    `two_levels` False lets every index source choose among all entries. With `stored` layers read these rows in place
    of those that they make. `shared` has what layers handed down in the last call of `logits`.
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        config: Config,
        compressed: list[int],
        rounding: Rounding = PUBLISHED,
        *,
        two_levels: bool = True,
        stored: Stored | None = None,
    ) -> None:
        self.weights = {name: t.double() for name, t in weights.items()}
        self.config, self.compressed, self.rounding = config, compressed, rounding
        self.two_levels, self.stored = two_levels, stored
        self.eps = float(config["rms_norm_eps"])
        self.shared = Shared()

    def logits(self, token_ids: list[int]) -> Tensor:
        """float64 [T, vocab]: logits of every token."""
        self.shared = Shared()
        self.token_ids = token_ids
        self.positions = torch.arange(len(token_ids))
        streams = self.weights["embed.weight"][token_ids][:, None].repeat(1, self.config["hc_mult"], 1)
        before = torch.zeros(len(token_ids), self.config["hc_mult"], dtype=torch.float64)
        before[:, 0] = 1
        for layer in range(self.config["num_hidden_layers"]):
            streams, before = self._layer(layer, streams, before)
        return self._norm(self._collapsed(streams, before), "norm.weight") @ self.weights["head.weight"].T

    def _layer(self, layer: int, streams: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """The mix of a sublayer's input is the one that the sublayer before it computed."""
        round_, name = self.rounding.activation, f"layers.{layer}."
        if layer in self.config["engram_layer_ids"]:
            streams = self._engram(layer, streams)
        for sublayer in ("attn", "ffn"):
            mix, spread, across = self._mixes(streams, f"{name}hc_{sublayer}")
            x = self._norm(self._collapsed(streams, before), f"{name}{sublayer}_norm.weight")
            out = self._attention(layer, x) if sublayer == "attn" else self._experts(layer, x)
            streams = round_(spread[..., None] * out[:, None] + torch.einsum("tij,tid->tjd", across, streams))
            before = mix
        return streams, before

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return self.rounding.activation(norm(x, self.weights[name], self.eps))

    def _collapsed(self, streams: Tensor, mix: Tensor) -> Tensor:
        return self.rounding.activation((mix[..., None] * streams).sum(1))

    def _mixes(self, streams: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """For the next input, for this output, and between the streams (rows and columns add up to one)."""
        copies, eps = self.config["hc_mult"], self.config["hc_eps"]
        flat = streams.flatten(1)
        mixes = (flat @ self.weights[name + "_fn"].T) / (flat.square().mean(-1, keepdim=True) + self.eps).sqrt()
        scale, base = self.weights[name + "_scale"], self.weights[name + "_base"]
        into = (mixes[:, :copies] * scale[0] + base[:copies]).sigmoid() + eps
        out = 2 * (mixes[:, copies : 2 * copies] * scale[1] + base[copies : 2 * copies]).sigmoid()
        across = (mixes[:, 2 * copies :] * scale[2] + base[2 * copies :]).reshape(-1, copies, copies)
        across = across.softmax(-1) + eps
        for turn in range(2 * self.config["hc_sinkhorn_iters"] - 1):
            across = across / (across.sum(1 if turn % 2 == 0 else 2, keepdim=True) + eps)
        return into, out, across

    def _engram(self, layer: int, streams: Tensor) -> Tensor:
        ids = [self.compressed[t] for t in self.token_ids]
        pad = self.compressed[self.config["engram_pad_token_id"]]
        prefix = f"layers.{layer}.engram."
        rows = self.weights[prefix + "embed.weight"][engram.hashed_rows(self.config, ids, pad, layer)]
        return engram.add_to_streams(streams, rows, lambda n: self.weights[prefix + n], self.eps, self.rounding)

    def _experts(self, layer: int, x: Tensor) -> Tensor:
        prefix = f"layers.{layer}.ffn."
        scores = softplus(self.rounding.router(x) @ self.weights[prefix + "gate.weight"].T).sqrt()
        order = (scores + self.weights[prefix + "gate.bias"]).argsort(descending=True, stable=True)
        chosen = order[:, : self.config["num_experts_per_tok"]]
        share = scores.gather(1, chosen)
        if self.config["norm_topk_prob"] and chosen.shape[1] > 1:
            share = share / (share.sum(-1, keepdim=True) + 1e-20)
        share = torch.zeros_like(scores).scatter_(1, chosen, share * self.config["routed_scaling_factor"])
        total = self._expert(prefix + "shared_experts.", x, torch.ones(len(x), dtype=torch.float64))
        for expert in range(scores.shape[1]):
            total = total + self._expert(f"{prefix}experts.{expert}.", x, share[:, expert])
        return self.rounding.activation(total)

    def _expert(self, prefix: str, x: Tensor, share: Tensor) -> Tensor:
        limit, round_ = self.config["swiglu_limit"], self.rounding.activation
        gate = round_(x @ self.weights[prefix + "w1.weight"].T).clamp(max=limit)
        up = round_(x @ self.weights[prefix + "w3.weight"].T).clamp(-limit, limit)
        return round_(round_(share[:, None] * silu(gate) * up) @ self.weights[prefix + "w2.weight"].T)

    def _attention(self, layer: int, x: Tensor) -> Tensor:
        config, round_, prefix = self.config, self.rounding.activation, f"layers.{layer}.attn."
        ratio = config["compress_ratios"][layer]
        turn = attention.turns(config, self.positions, ratio > 0)
        low = self._norm(round_(x @ self.weights[prefix + "wq_a.weight"].T), prefix + "q_norm.weight")
        q = round_(low @ self.weights[prefix + "wq_b.weight"].T).reshape(len(x), -1, 512)
        q = round_(attention.rotate(q, turn))
        keys = self._held("window", layer, self._window(prefix, x, turn))
        age = self.positions[:, None] - self.positions
        seen = (age >= 0) & (age < config["sliding_window"])
        if ratio:
            self._sources(layer, x, low, turn, ratio)
            keys, seen = torch.cat([keys, self.shared.entries]), torch.cat([seen, self.shared.chosen], 1)
        out = attention.attend(q, keys, seen, self.weights[prefix + "attn_sink"])
        out = round_(attention.rotate(round_(out), turn, inverse=True))
        groups = out.reshape(len(x), config["o_groups"], -1)
        inner = self.weights[prefix + "wo_a.weight"].reshape(config["o_groups"], -1, groups.shape[-1])
        inner = round_(torch.einsum("tgd,grd->tgr", groups, inner)).flatten(1)
        return round_(inner @ self.weights[prefix + "wo_b.weight"].T)

    def _window(self, prefix: str, x: Tensor, turn: Tensor) -> Tensor:
        row = self.rounding.activation(x @ self.weights[prefix + "wkv.weight"].T)
        row = self.rounding.row(norm(row, self.weights[prefix + "kv_norm.weight"], self.eps))
        return self.rounding.window(self.rounding.row(attention.rotate(row, turn)))

    def _sources(self, layer: int, x: Tensor, low: Tensor, turn: Tensor, ratio: int) -> None:
        """What this layer publishes: entries and index keys, and which entries each token takes."""
        prefix = f"layers.{layer}.attn."
        if layer in self.config["kv_source_layer_ids"]:
            names = ("wkv", "norm", "wgate") if ratio > 1 else ("wkv", "norm")
            compressor = {name: self.weights[f"{prefix}compressor.{name}.weight"] for name in names}
            latent = attention.latents(x, compressor, ratio, self.eps, self.rounding)
            at = turn[: len(latent) * ratio : ratio]
            entries = self.rounding.latent(self.rounding.row(attention.rotate(latent, at)))
            self.shared.entries = self._held("entries", layer, entries)
            wk, k_norm = (self.weights[f"{prefix}indexer.{name}.weight"] for name in ("wk", "k_norm"))
            keys = attention.index_keys(latent, wk, k_norm, at, self.eps, self.rounding)
            self.shared.keys = self._held("keys", layer, keys)
        if layer in self.config["index_source_layer_ids"]:
            self.shared.chosen = self.shared.choices[layer] = self._choose(layer, x, low, turn, ratio)

    def _held(self, kind: Kind, layer: int, made: Tensor) -> Tensor:
        """What later steps read: what was made, or what the engine stored in its place."""
        self.shared.made[kind, layer] = made
        return made if self.stored is None else self.stored(kind, layer).double()

    def _choose(self, layer: int, x: Tensor, low: Tensor, turn: Tensor, ratio: int) -> Tensor:
        config, prefix = self.config, f"layers.{layer}.attn.indexer."
        heads, round_ = config["index_n_heads"], self.rounding.head_weight
        q = (low @ self.weights[prefix + "wq_b.weight"].T).reshape(len(x), heads, 128)
        shares = round_(round_(x @ self.weights[prefix + "weights_proj.weight"].T) * (128**-0.5 * heads**-0.5))
        scores = attention.index_scores(attention.index_queries(q, turn, self.rounding), self.shared.keys, shares)
        visible = (self.positions + 1) // ratio
        scores = scores.masked_fill(torch.arange(scores.shape[1]) >= visible[:, None], -torch.inf)
        source, margin = config["candidate_source_layer_id"], margins(scores, config["index_topk"])
        if self.two_levels and layer == source:
            blocks, size = config["candidate_topk_blocks"], config["candidate_block_size"]
            margin = margin.minimum(margins(attention.block_scores(scores, visible, size), blocks))
            self.shared.candidates = attention.candidates(scores, visible, blocks, size)
        elif self.two_levels and 0 <= source < layer and self.shared.candidates is not None:
            scores = scores.masked_fill(~self.shared.candidates, -torch.inf)
            margin = margins(scores, config["index_topk"]).minimum(self.shared.margins[source])
        self.shared.margins[layer] = margin
        return attention.best(scores, config["index_topk"])


def margins(scores: Tensor, count: int) -> Tensor:
    """[T]: between the `count` highest of a row and the next, as a share of the largest finite one; inf if all fit."""
    if scores.shape[1] <= count:
        return torch.full((len(scores),), torch.inf, dtype=torch.float64)
    ranked = scores.sort(-1, descending=True).values
    largest = ranked.abs().masked_fill(~ranked.isfinite(), 0).amax(-1)
    return ((ranked[:, count - 1] - ranked[:, count]) / largest).nan_to_num(torch.inf, torch.inf, torch.inf)
