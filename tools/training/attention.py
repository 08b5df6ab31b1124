"""Attention of DeepSeek-V4 for training: window, compressed entries, and the index that picks them."""

import torch
import torch.nn.functional as F
from tools.training.layers import Projections, RMSNorm, attend, unit_rms
from tools.training.rope import RopeTable
from tools.training.selection import IndexInputs, IndexMode, IndexProbe, best, chunks_of_scores, take, visible_entries
from torch import Tensor, nn

from dsv4_serve.engines.embedded.config import ModelConfig


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
    """Index queries, keys and head weights of a C4 layer; the keys come from a compressor of its own."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.dim = config.index_n_heads, config.index_head_dim
        self.compressor = Compressor(config, 4, self.dim)
        self.wq_b = nn.Linear(config.q_lora_rank, self.heads * self.dim, bias=False)
        self.weights_proj = nn.Linear(config.hidden_size, self.heads, bias=False)

    def project(self, x: Tensor, q_residual: Tensor, rope: RopeTable) -> IndexInputs:
        queries = rope.rotate(torch.unflatten(self.wq_b(q_residual), -1, (self.heads, self.dim)))
        weights = self.weights_proj(x).float() * (self.heads**-0.5 * self.dim**-0.5)
        return IndexInputs(queries, self.compressor(x, rope), weights)


class Attention(Projections):
    """One layer's attention: multi-query with keys that are also the values, sinks, grouped low-rank output."""

    def __init__(self, config: ModelConfig, ratio: int) -> None:
        super().__init__(config)
        self.ratio = ratio
        self.compressor = Compressor(config, ratio, config.head_dim) if ratio else None
        self.indexer = Indexer(config) if ratio == 4 else None

    def forward(
        self, x: Tensor, rope: RopeTable, mode: IndexMode, probes: Tensor | None
    ) -> tuple[Tensor, IndexProbe | None]:
        """x [batch, length, hidden], length a multiple of the window -> the same shape, and a probe if asked."""
        q_residual = self.q_norm(self.wq_a(x))
        q = self.query_heads(q_residual)
        q = rope.rotate(unit_rms(q.float(), self.config.rms_norm_eps).to(q.dtype))
        kv = rope.rotate(self.kv_norm(self.wkv(x)))
        entries, visible, allowed, probe_scores = None, None, None, None
        if self.compressor is not None:
            entries = self.compressor(x, rope)
            visible = allowed = visible_entries(x.shape[1], entries.shape[1], self.ratio, x.device)[None]
        if self.indexer is not None and visible is not None:
            # Detached: the index learns to follow attention and must not bend what attention reads.
            inputs = self.indexer.project(x.detach(), q_residual.detach(), rope)
            if probes is not None:
                probe_scores = inputs.at(probes).scores()
            allowed = choose(inputs, visible, mode)
        out, mass = attend(q, kv, entries, allowed, self.attn_sink, self.config.sliding_window, probes)
        out = self.project_output(out, rope)
        if probe_scores is None or probes is None or mass is None or visible is None:
            return out, None
        return out, IndexProbe(probe_scores, mass, take(visible.expand(len(x), -1, -1), probes))


@torch.no_grad()
def choose(inputs: IndexInputs, visible: Tensor, mode: IndexMode) -> Tensor:
    """Entries each query may attend to, bool [batch or 1, length, entries]. On equal scores the lowest index wins."""
    if mode.selection == "none":
        return torch.zeros_like(visible)
    if mode.topk is None:
        return visible
    return torch.cat([best(scores, mode.topk) for scores in chunks_of_scores(inputs, visible, mode)], dim=1)
