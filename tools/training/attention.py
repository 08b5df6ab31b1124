"""Attention of DeepSeek-V4 for training: window, compressed entries, and the index that picks them.

The index returns integers, so cross entropy never reaches it. `IndexProbe` carries, for a sample of queries, the
index scores (with gradient) and the attention mass on the same entries (without); losses.py pulls one to the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from tools.training.rope import RopeTable
from torch import Tensor, nn

from dsv4_serve.engines.embedded.config import ModelConfig

SCORE_CHUNK = 512
"""Queries scored at a time where no gradient is kept: bounds the [queries, heads, entries] temporary."""


@dataclass(frozen=True)
class IndexMode:
    """How C4 layers choose entries. `topk` None attends to all; `transform` maps index queries and keys (e.g.
    quantise and dequantise) before scoring; `random` and `none` are the ablations."""

    topk: int | None = None
    transform: Callable[[Tensor], Tensor] | None = None
    selection: Literal["scores", "random", "none"] = "scores"


@dataclass(frozen=True)
class IndexProbe:
    """Sampled queries of one C4 layer: scores and mass float32 [batch, probes, entries], visible bool alike."""

    scores: Tensor
    mass: Tensor
    visible: Tensor


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32, output in the input's dtype."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return unit_rms(x.float(), self.eps).mul(self.weight).to(x.dtype)


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x scaled to root mean square 1 over the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Compressor(nn.Module):
    """`ratio` tokens to one entry by a softmax over slots, each channel its own; ratio 4 overlaps the window before."""

    def __init__(self, config: ModelConfig, ratio: int, head_dim: int) -> None:
        super().__init__()
        self.ratio, self.head_dim, self.overlap = ratio, head_dim, ratio == 4
        width = head_dim * (2 if self.overlap else 1)
        self.wkv = nn.Linear(config.hidden_size, width, bias=False)
        self.wgate = nn.Linear(config.hidden_size, width, bias=False)
        self.ape = nn.Parameter(torch.zeros(ratio, width))
        self.norm = RMSNorm(head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, rope: RopeTable) -> Tensor:
        """x [batch, length, hidden] -> [batch, length // ratio, head_dim], rotated; an unfinished window is dropped."""
        usable = x.shape[1] // self.ratio * self.ratio
        x = x[:, :usable]
        values = torch.unflatten(self.wkv(x), 1, (-1, self.ratio))
        gates = torch.unflatten(self.wgate(x).float(), 1, (-1, self.ratio)) + self.ape
        if self.overlap:
            values = self._with_previous(values, 0.0)
            gates = self._with_previous(gates, float("-inf"))
        entries = (values * gates.softmax(dim=2).to(values.dtype)).sum(dim=2)
        return rope.rotate(self.norm(entries), stride=self.ratio)

    def _with_previous(self, x: Tensor, fill: float) -> Tensor:
        # First half of the channels belongs to the NEXT entry, second half to the entry's own window.
        previous = F.pad(x[:, :-1, :, : self.head_dim], (0, 0, 0, 0, 1, 0), value=fill)
        return torch.cat((previous, x[..., self.head_dim :]), dim=2)


class Indexer(nn.Module):
    """Scores entries for each query: sum over heads of w * relu(q . k)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dim = config.index_n_heads, config.index_head_dim
        self.compressor = Compressor(config, 4, self.dim)
        self.wq_b = nn.Linear(config.q_lora_rank, self.heads * self.dim, bias=False)
        self.weights_proj = nn.Linear(config.hidden_size, self.heads, bias=False)

    def project(self, x: Tensor, q_residual: Tensor, rope: RopeTable) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [batch, length, heads, dim], keys [batch, entries, dim], weights [batch, length, heads]."""
        queries = rope.rotate(torch.unflatten(self.wq_b(q_residual), -1, (self.heads, self.dim)))
        weights = self.weights_proj(x).float() * (self.heads**-0.5 * self.dim**-0.5)
        return queries, self.compressor(x, rope), weights

    @staticmethod
    def score(queries: Tensor, keys: Tensor, weights: Tensor) -> Tensor:
        """float32 [batch, queries, entries]."""
        batch, length, heads, _ = queries.shape
        dots = torch.matmul(queries.flatten(1, 2), keys.to(queries.dtype).transpose(1, 2))
        dots = torch.unflatten(F.relu(dots), 1, (length, heads))
        flat = torch.matmul(weights.to(dots.dtype).flatten(0, 1)[:, None], dots.flatten(0, 1))
        return flat.float().view(batch, length, -1)


class Attention(nn.Module):
    """One layer's attention: multi-query with keys that are also the values, sinks, grouped low-rank output."""

    def __init__(self, config: ModelConfig, ratio: int) -> None:
        super().__init__()
        self.config, self.ratio = config, ratio
        heads, dim, hidden = config.num_attention_heads, config.head_dim, config.hidden_size
        self.wq_a = nn.Linear(hidden, config.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.wq_b = nn.Linear(config.q_lora_rank, heads * dim, bias=False)
        self.wkv = nn.Linear(hidden, dim, bias=False)
        self.kv_norm = RMSNorm(dim, config.rms_norm_eps)
        self.wo_a = nn.Linear(heads * dim // config.o_groups, config.o_groups * config.o_lora_rank, bias=False)
        self.wo_b = nn.Linear(config.o_groups * config.o_lora_rank, hidden, bias=False)
        self.attn_sink = nn.Parameter(torch.zeros(heads))
        self.compressor = Compressor(config, ratio, dim) if ratio else None
        self.indexer = Indexer(config) if ratio == 4 else None

    def forward(
        self, x: Tensor, rope: RopeTable, mode: IndexMode, probes: Tensor | None
    ) -> tuple[Tensor, IndexProbe | None]:
        """x [batch, length, hidden], length a multiple of the window -> the same shape, and a probe if asked."""
        heads, dim = self.config.num_attention_heads, self.config.head_dim
        q_residual = self.q_norm(self.wq_a(x))
        q = torch.unflatten(self.wq_b(q_residual), -1, (heads, dim))
        q = rope.rotate(unit_rms(q.float(), self.config.rms_norm_eps).to(q.dtype))
        kv = rope.rotate(self.kv_norm(self.wkv(x)))
        entries, allowed, probe_scores = None, None, None
        if self.compressor is not None:
            entries = self.compressor(x, rope)
            allowed = visible_entries(x.shape[1], entries.shape[1], self.ratio, x.device)[None]
        if self.indexer is not None and allowed is not None:
            # Detached: the index learns to follow attention and must not bend what attention reads.
            inputs = self.indexer.project(x.detach(), q_residual.detach(), rope)
            if probes is not None:
                probe_scores = (
                    Indexer.score(take(inputs[0], probes), inputs[1], take(inputs[2], probes)),
                    allowed,
                )
            allowed = choose(inputs, allowed, mode)
        out, mass = attend(q, kv, entries, allowed, self.attn_sink, self.config.sliding_window, probes)
        out = torch.unflatten(rope.rotate(out, inverse=True).flatten(2), -1, (self.config.o_groups, -1))
        low = torch.unflatten(self.wo_a.weight, 0, (self.config.o_groups, -1))
        out = self.wo_b(torch.einsum("bsgd,grd->bsgr", out, low).flatten(2))
        if probe_scores is None or probes is None or mass is None:
            return out, None
        visible = take(probe_scores[1].expand(len(x), -1, -1), probes)
        return out, IndexProbe(probe_scores[0], mass, visible)


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x [batch, length, ...] at rows [batch, n] -> [batch, n, ...]."""
    return x[torch.arange(len(x), device=x.device)[:, None], rows]


def visible_entries(length: int, entries: int, ratio: int, device: torch.device) -> Tensor:
    """bool [length, entries]: an entry is visible once the query has seen its whole window."""
    ready = (torch.arange(length, device=device) + 1) // ratio
    return torch.arange(entries, device=device)[None] < ready[:, None]


@torch.no_grad()
def choose(inputs: tuple[Tensor, Tensor, Tensor], visible: Tensor, mode: IndexMode) -> Tensor:
    """Entries each query may attend to, bool [batch or 1, length, entries]. On equal scores the lowest index wins."""
    queries, keys, weights = inputs
    if mode.selection == "none":
        return torch.zeros_like(visible)
    if mode.topk is None:
        return visible
    if mode.transform is not None:
        queries, keys = mode.transform(queries), mode.transform(keys)
    rows = []
    for start in range(0, queries.shape[1], SCORE_CHUNK):
        part = slice(start, start + SCORE_CHUNK)
        if mode.selection == "random":
            scores = torch.rand(len(keys), queries[:, part].shape[1], keys.shape[1], device=keys.device)
        else:
            scores = Indexer.score(queries[:, part], keys, weights[:, part])
        scores = scores.masked_fill(~visible[:, part], float("-inf"))
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., : mode.topk]
        rows.append(torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True))
    return torch.cat(rows, dim=1) & visible


def attend(
    q: Tensor,
    kv: Tensor,
    entries: Tensor | None,
    allowed: Tensor | None,
    sink: Tensor,
    window: int,
    probes: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Softmax over the last `window` tokens, the allowed entries and the sink.

    q [batch, length, heads, dim], kv [batch, length, dim], entries [batch, n, dim] -> [batch, length, heads, dim]
    and, at `probes`, the head-mean mass on entries, float32 [batch, probes, n] without gradient.
    """
    batch, length, heads, dim = q.shape
    blocks = torch.unflatten(kv, 1, (-1, window))
    near = torch.cat((F.pad(blocks[:, :-1], (0, 0, 0, 0, 1, 0)), blocks), dim=2)  # [batch, blocks, 2 * window, dim]
    scaled = q * dim**-0.5
    logits = torch.einsum("bnqhd,bnkd->bnqhk", torch.unflatten(scaled, 1, (-1, window)), near)
    offset = torch.arange(2 * window, device=q.device)[None] - torch.arange(window, device=q.device)[:, None]
    inside = (offset > 0) & (offset <= window)
    first = inside & (torch.arange(2 * window, device=q.device) >= window)
    mask = torch.cat((first[None], inside.expand(length // window - 1, -1, -1))).flatten(0, 1)  # [length, 2 * window]
    parts = [logits.flatten(1, 2).masked_fill(~mask[None, :, None], float("-inf"))]
    if entries is not None and allowed is not None:
        far = torch.matmul(scaled.flatten(1, 2), entries.to(q.dtype).transpose(1, 2))
        far = torch.unflatten(far, 1, (length, heads))
        parts.append(far.masked_fill(~allowed[:, :, None], float("-inf")))
    parts.append(sink.to(q.dtype).view(1, 1, heads, 1).expand(batch, length, heads, 1))
    weights = torch.cat(parts, dim=-1).softmax(dim=-1, dtype=torch.float32)
    close = torch.unflatten(weights[..., : 2 * window].to(kv.dtype), 1, (-1, window))
    out = torch.einsum("bnqhk,bnkd->bnqhd", close, near).flatten(1, 2)
    if entries is None:
        return out, None
    distant = weights[..., 2 * window : -1]
    read = torch.matmul(distant.to(kv.dtype).flatten(1, 2), entries.to(kv.dtype))
    out = out + torch.unflatten(read, 1, (length, heads))
    return out, None if probes is None else take(distant.detach(), probes).mean(dim=2)
