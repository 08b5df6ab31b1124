"""Attention of DeepSeek-V4.1 for training: sources compress and index, the layers below them reuse what they published.

The two-level selection is done densely: a bool for each query and entry. Choosing is outside the gradient; what was
chosen is attended to with gradient, and the index learns from `IndexProbe`s that the model makes of scores and masses.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tools.training.layers import Projections, RMSNorm, attend
from tools.training.rope import RopeTable
from tools.training.selection import IndexInputs, IndexMode, best, chunks_of_scores, visible_entries
from tools.training.v41.rounding import round_entries, round_window
from torch import Tensor, nn

from dsv4_serve.engines.embedded.v41.config import V41Config


class Compressor(nn.Module):
    """Tokens to latents: ratio 1 is a projection, ratio 2 a softmax over pairs, each channel its own. No rotation."""

    def __init__(self, config: V41Config, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio
        self.wkv = nn.Linear(config.hidden_size, config.head_dim, bias=False)
        self.wgate = nn.Linear(config.hidden_size, config.head_dim, bias=False) if ratio > 1 else None
        self.norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, length, hidden], length a multiple of the ratio -> [batch, length // ratio, head_dim]."""
        values = self.wkv(x)
        if self.wgate is not None:
            pairs = torch.unflatten(values.float(), 1, (-1, self.ratio))
            gates = torch.unflatten(self.wgate(x).float(), 1, (-1, self.ratio)).softmax(dim=2)
            values = (pairs * gates).sum(dim=2).to(x.dtype)
        latents: Tensor = self.norm(values)
        return latents


class Indexer(nn.Module):
    """Index queries and head weights; a KV source also makes the keys, of its latents."""

    def __init__(self, config: V41Config, owns_keys: bool) -> None:
        super().__init__()
        self.heads, self.dim = config.index_n_heads, config.index_head_dim
        self.wq_b = nn.Linear(config.q_lora_rank, self.heads * self.dim, bias=False)
        self.weights_proj = nn.Linear(config.hidden_size, self.heads, bias=False)
        if owns_keys:
            self.wk = nn.Linear(config.head_dim, self.dim, bias=False)
            self.k_norm = RMSNorm(self.dim, config.rms_norm_eps)

    def keys(self, latents: Tensor, rope: RopeTable, ratio: int) -> Tensor:
        return rope.rotate(self.k_norm(self.wk(latents)), stride=ratio)

    def project(self, x: Tensor, q_residual: Tensor, keys: Tensor, rope: RopeTable) -> IndexInputs:
        queries = rope.rotate(torch.unflatten(self.wq_b(q_residual), -1, (self.heads, self.dim)))
        weights = self.weights_proj(x).float() * (self.heads**-0.5 * self.dim**-0.5)
        return IndexInputs(queries, keys, weights)


@dataclass
class Published:
    """What sources hand to the layers below.

    Rotated entries and index keys [batch, entries, dim]; bools [batch or 1, length, entries] of visible and chosen ones
    and of those in the candidate source's blocks; the index source that chose.
    """

    entries: Tensor
    keys: Tensor
    visible: Tensor
    allowed: Tensor
    candidates: Tensor | None = None
    chosen_by: int = -1


@dataclass(frozen=True)
class Reading:
    """Of the probed queries [batch, n, entries]: index scores where the layer has an index, and attention mass."""

    scores: Tensor | None
    mass: Tensor | None


class Attention(Projections):
    """One layer's attention."""

    def __init__(self, config: V41Config, number: int) -> None:
        super().__init__(config)
        self.v41, self.number, self.ratio = config, number, config.compress_ratios[number]
        owns = number in config.kv_source_layer_ids
        self.compressor = Compressor(config, self.ratio) if owns else None
        self.indexer = Indexer(config, owns) if number in config.index_source_layer_ids else None

    def forward(
        self, x: Tensor, rope: RopeTable, shared: Published | None, mode: IndexMode, probes: Tensor | None
    ) -> tuple[Tensor, Published | None, Reading]:
        """x [batch, length, hidden], length a multiple of the window -> the same shape, what layers below read from now
        on, and what the index is taught from."""
        q_residual = self.q_norm(self.wq_a(x))
        q = rope.rotate(self.query_heads(q_residual))
        kv = rope.rotate(self.kv_norm(self.wkv(x)))
        kv = round_window(kv) if mode.stored_kv else kv
        if self.compressor is not None:
            shared = self._publish(self.compressor(x), rope, mode)
        entries, allowed, scores = None, None, None
        if self.ratio:
            assert shared is not None, f"layer {self.number} reads entries that no layer above it compresses"
            if self.indexer is not None:
                # Detached: the index learns to follow attention and must not bend what attention reads.
                inputs = self.indexer.project(x.detach(), q_residual.detach(), shared.keys, rope)
                scores = None if probes is None else inputs.at(probes).scores()
                shared = self._choose(inputs, shared, mode)
            entries, allowed = shared.entries, shared.allowed
        window = mode.window or self.config.sliding_window
        out, mass = attend(q, kv, entries, allowed, self.attn_sink, window, probes)
        return self.project_output(out, rope), shared, Reading(scores, mass)

    def _publish(self, latents: Tensor, rope: RopeTable, mode: IndexMode) -> Published:
        entries = rope.rotate(latents, stride=self.ratio)
        entries = round_entries(entries) if mode.stored_kv else entries
        visible = visible_entries(latents.shape[1] * self.ratio, latents.shape[1], self.ratio, latents.device)[None]
        assert self.indexer is not None, f"layer {self.number} compresses and has no index"
        keys = self.indexer.keys(latents.detach(), rope, self.ratio)
        return Published(entries, keys, visible, visible)

    @torch.no_grad()
    def _choose(self, inputs: IndexInputs, shared: Published, mode: IndexMode) -> Published:
        """The choice of this layer, and of the candidate source its blocks. Ties as `best` breaks them."""
        shared = Published(shared.entries, shared.keys, shared.visible, shared.visible, shared.candidates, self.number)
        if mode.selection == "none":
            shared.allowed = torch.zeros_like(shared.visible)
        if mode.selection == "none" or mode.topk is None:
            return shared
        source = self.v41.candidate_source_layer_id
        limited = shared.candidates if mode.two_level and 0 <= source < self.number else None
        chosen, blocks, start = [], [], 0
        for scores in chunks_of_scores(inputs, shared.visible, mode):
            part = slice(start, start := start + scores.shape[1])
            if self.number == source:
                blocks.append(self._candidates(scores, shared.visible[:, part]))
            if limited is not None:
                scores = scores.masked_fill(~limited[:, part], float("-inf"))
            chosen.append(best(scores, mode.topk, exact_ties=not self.training))
        shared.allowed = torch.cat(chosen, dim=1)
        if blocks:
            shared.candidates = torch.cat(blocks, dim=1)
        return shared

    def _candidates(self, scores: Tensor, visible: Tensor) -> Tensor:
        """bool like scores: entries of the blocks with the highest maxima; the query's newest block is one of them."""
        size, width = self.v41.candidate_block_size, scores.shape[-1]
        highest = in_blocks(scores, size, float("-inf")).amax(dim=-1)
        newest = (visible.sum(-1, keepdim=True) - 1) // size
        pinned = torch.arange(highest.shape[-1], device=scores.device) == newest
        kept = best(
            highest.masked_fill(pinned, float("inf")), self.v41.candidate_topk_blocks, exact_ties=not self.training
        )
        return kept.repeat_interleave(size, dim=-1)[..., :width]


def in_blocks(x: Tensor, size: int, fill: float) -> Tensor:
    """x [..., entries] as [..., blocks, size], the last block filled up."""
    return torch.unflatten(F.pad(x, (0, -x.shape[-1] % size), value=fill), -1, (-1, size))
