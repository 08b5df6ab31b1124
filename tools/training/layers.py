"""What the attention of both models is made of: norms, projections, and the softmax over window and entries."""

import torch
import torch.nn.functional as F
from tools.training.rope import RopeTable
from tools.training.selection import take
from torch import Tensor, nn

from dsv4_serve.engines.embedded.config import CommonConfig


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


class Projections(nn.Module):
    """What every attention layer has: low-rank queries, keys that are also the values, grouped low-rank output."""

    def __init__(self, config: CommonConfig) -> None:
        super().__init__()
        self.config = config
        heads, dim, hidden = config.num_attention_heads, config.head_dim, config.hidden_size
        self.wq_a = nn.Linear(hidden, config.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(config.q_lora_rank, config.rms_norm_eps)
        self.wq_b = nn.Linear(config.q_lora_rank, heads * dim, bias=False)
        self.wkv = nn.Linear(hidden, dim, bias=False)
        self.kv_norm = RMSNorm(dim, config.rms_norm_eps)
        self.wo_a = nn.Linear(heads * dim // config.o_groups, config.o_groups * config.o_lora_rank, bias=False)
        self.wo_b = nn.Linear(config.o_groups * config.o_lora_rank, hidden, bias=False)
        self.attn_sink = nn.Parameter(torch.zeros(heads))

    def query_heads(self, q_residual: Tensor) -> Tensor:
        """[batch, length, heads, dim], before any norm or rotation."""
        return torch.unflatten(self.wq_b(q_residual), -1, (self.config.num_attention_heads, self.config.head_dim))

    def project_output(self, out: Tensor, rope: RopeTable) -> Tensor:
        """Heads [batch, length, heads, dim] rotated back and projected to [batch, length, hidden]."""
        out = torch.unflatten(rope.rotate(out, inverse=True).flatten(2), -1, (self.config.o_groups, -1))
        low = torch.unflatten(self.wo_a.weight, 0, (self.config.o_groups, -1))
        projected: Tensor = self.wo_b(torch.einsum("bsgd,grd->bsgr", out, low).flatten(2))
        return projected


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
