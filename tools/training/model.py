"""DeepSeek-V4 in plain torch for training; state_dict() keys are DeepSeek's own tensor names.

Written for whole sequences from position 0 (no cache), with every shape static so that the GPU never waits for
the CPU: all experts run densely and the router weights, zero for experts not chosen, pick.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tools.training.attention import Attention
from tools.training.layers import RMSNorm, unit_rms
from tools.training.rope import RopeTable
from tools.training.selection import IndexMode, IndexProbe
from torch import Tensor, nn

from dsv4_serve.engines.embedded.config import CommonConfig, ModelConfig


@dataclass(frozen=True)
class ModelOutput:
    """logits float32 [batch, length, vocab]; one probe a C4 layer; expert load [experts] a learned router."""

    logits: Tensor
    probes: list[IndexProbe]
    loads: list[Tensor]


class Gate(nn.Module):
    """Router: sqrt(softplus) scores; the first `num_hash_layers` layers fix the choice by token id."""

    bias: Tensor
    tid2eid: Tensor

    def __init__(self, config: CommonConfig, hashed: bool) -> None:
        super().__init__()
        self.config, self.hashed = config, hashed
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        if hashed:
            token = torch.arange(config.vocab_size)[:, None]
            slot = torch.arange(config.num_experts_per_tok)[None]
            # Neighbouring bytes spread over experts; the two slots of a token always differ.
            table = (token + token // config.n_routed_experts + slot) % config.n_routed_experts
            self.register_buffer("tid2eid", table.to(torch.int32))
        else:
            self.register_buffer("bias", torch.zeros(config.n_routed_experts))

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weights float32 [batch, length, experts], zero where not chosen, and the load of a learned router."""
        with torch.autocast(x.device.type, enabled=False):
            scores = F.softplus(F.linear(x.float(), self.weight.float())).sqrt()
        if self.hashed:
            chosen = self.tid2eid[ids].long()
        else:
            chosen = (scores + self.bias).topk(self.config.num_experts_per_tok, dim=-1).indices
        picked = scores.gather(-1, chosen)
        picked = picked / (picked.sum(-1, keepdim=True) + 1e-20) * self.config.routed_scaling_factor
        weights = torch.zeros_like(scores).scatter(-1, chosen, picked)
        return weights, None if self.hashed else (weights.detach() > 0).float().mean(dim=(0, 1))


class Expert(nn.Module):
    """SwiGLU weights: w1 gate, w3 up, w2 down."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, width, bias=False)
        self.w2 = nn.Linear(width, hidden, bias=False)
        self.w3 = nn.Linear(hidden, width, bias=False)


class MoE(nn.Module):
    """Routed experts and the shared expert, as three matrix products over all of them."""

    def __init__(self, config: CommonConfig, hashed: bool) -> None:
        super().__init__()
        self.limit, width = config.swiglu_limit, config.moe_intermediate_size
        self.gate = Gate(config, hashed)
        self.experts = nn.ModuleList(Expert(config.hidden_size, width) for _ in range(config.n_routed_experts))
        self.shared_experts = Expert(config.hidden_size, width)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        weights, load = self.gate(x, ids)
        everyone = [*self.experts, self.shared_experts]
        gate, up, down = (
            torch.cat([getattr(expert, name).weight for expert in everyone], dim=axis)
            for name, axis in (("w1", 0), ("w3", 0), ("w2", 1))
        )
        inner = F.silu(F.linear(x, gate).clamp(max=self.limit))
        inner = inner * F.linear(x, up).clamp(-self.limit, self.limit)
        weights = torch.cat((weights, torch.ones_like(weights[..., :1])), dim=-1)
        inner = torch.unflatten(inner, -1, (len(everyone), -1)) * weights[..., None].to(inner.dtype)
        return F.linear(inner.flatten(-2), down), load


def mix_weights(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, config: CommonConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Hyper-connection weights of one sublayer from streams [batch, length, n, hidden], all float32:
    pre and post [batch, length, n], mixing [batch, length, n, n] (doubly stochastic by Sinkhorn steps)."""
    n, eps = config.hc_mult, config.hc_eps
    mixed = F.linear(unit_rms(streams.flatten(2).float(), config.rms_norm_eps), fn.float())
    pre, post, comb = torch.split(mixed, [n, n, n * n], dim=-1)
    pre_base, post_base, comb_base = torch.split(base, [n, n, n * n])
    pre = torch.sigmoid(pre * scale[0] + pre_base) + eps
    post = 2 * torch.sigmoid(post * scale[1] + post_base)
    comb = torch.unflatten(comb * scale[2] + comb_base, -1, (n, n)).softmax(dim=-1) + eps
    comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    for _ in range(config.hc_sinkhorn_iters - 1):
        comb = comb / (comb.sum(dim=-1, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    return pre, post, comb


def collapse(streams: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the streams, [batch, length, hidden]."""
    return (pre[..., None] * streams).sum(dim=2)


def expand(streams: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams: the output spread by `post`, plus the old streams mixed by `comb`, consumed transposed."""
    with torch.autocast(streams.device.type, enabled=False):
        kept = torch.matmul(comb.transpose(-1, -2), streams)
    return post[..., None] * output.float()[:, :, None] + kept


class HyperConnected(nn.Module):
    """What a layer of either model has besides attention and MoE: a norm and hyper-connections for each."""

    def __init__(self, config: CommonConfig) -> None:
        super().__init__()
        self.config = config
        n, hidden = config.hc_mult, config.hidden_size
        for part in ("attn", "ffn"):
            self.add_module(f"{part}_norm", RMSNorm(hidden, config.rms_norm_eps))
            self.register_parameter(f"hc_{part}_fn", nn.Parameter(torch.empty((2 + n) * n, n * hidden)))
            self.register_parameter(f"hc_{part}_base", nn.Parameter(torch.zeros((2 + n) * n)))
            self.register_parameter(f"hc_{part}_scale", nn.Parameter(torch.ones(3)))

    def mix(self, part: str, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`mix_weights` of one sublayer."""
        fn, base, scale = (self.get_parameter(f"hc_{part}_{name}") for name in ("fn", "base", "scale"))
        with torch.autocast(streams.device.type, enabled=False):
            return mix_weights(streams, fn, base, scale, self.config)

    def read(self, part: str, streams: Tensor, pre: Tensor) -> Tensor:
        """A sublayer's input: the streams collapsed by `pre`, normed."""
        normed: Tensor = self.get_submodule(f"{part}_norm")(collapse(streams, pre))
        return normed


class Layer(HyperConnected):
    """Attention and MoE, each between a collapse and an expand of the residual streams."""

    def __init__(self, config: ModelConfig, index: int) -> None:
        super().__init__(config)
        self.attn = Attention(config, config.compress_ratios[index])
        self.ffn = MoE(config, hashed=index < config.num_hash_layers)

    def forward(
        self, streams: Tensor, ids: Tensor, rope: RopeTable, mode: IndexMode, probes: Tensor | None
    ) -> tuple[Tensor, IndexProbe | None, Tensor | None]:
        pre, post, comb = self.mix("attn", streams)
        out, probe = self.attn(self.read("attn", streams, pre), rope, mode, probes)
        streams = expand(streams, out, post, comb)
        pre, post, comb = self.mix("ffn", streams)
        out, load = self.ffn(self.read("ffn", streams, pre), ids)
        return expand(streams, out, post, comb), probe, load


def initialise(model: nn.Module, seed: int, std: float = 0.05, slot_std: float = 1.0) -> None:
    """Random matrices. Spread position biases make compressor channels prefer different slots from the start; norms,
    and the weights of an engram's gate, which are norms too, stay at one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".ape"):
            nn.init.normal_(parameter, std=slot_std, generator=generator)
        elif parameter.ndim >= 2 and not name.endswith(("engram.q_weight", "engram.k_weight")):
            nn.init.normal_(parameter, std=std, generator=generator)


class TinyV4(nn.Module):
    """The language model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.hc_head_fn = nn.Parameter(torch.empty(config.hc_mult, config.hc_mult * config.hidden_size))
        self.hc_head_base = nn.Parameter(torch.zeros(config.hc_mult))
        self.hc_head_scale = nn.Parameter(torch.ones(1))

    def initialise(self, seed: int) -> None:
        """Random weights."""
        initialise(self, seed)

    @staticmethod
    def stays_float(name: str, tensor: Tensor) -> bool:
        """Whether a checkpoint keeps the tensor in float32: norms, sinks, biases and hyper-connections."""
        return tensor.ndim < 2 or name.endswith(".ape") or "hc_" in name

    def forward(self, ids: Tensor, mode: IndexMode | None = None, probes: Tensor | None = None) -> ModelOutput:
        """ids int64 [batch, length], length at most max_position_embeddings; probes int64 [batch, n] query rows."""
        length, window = ids.shape[1], self.config.sliding_window
        if length > self.config.max_position_embeddings:
            raise ValueError(f"{length} tokens; max_position_embeddings is {self.config.max_position_embeddings}")
        ids = F.pad(ids, (0, -length % window))
        ropes = {flag: RopeTable(self.config, ids.shape[1], flag, ids.device) for flag in (False, True)}
        streams = self.embed(ids)[:, :, None].expand(-1, -1, self.config.hc_mult, -1)
        found, loads = [], []
        for layer, ratio in zip(self.layers, self.config.compress_ratios, strict=True):
            streams, probe, load = layer(streams, ids, ropes[ratio > 0], mode or IndexMode(), probes)
            found += [] if probe is None else [probe]
            loads += [] if load is None else [load]
        with torch.autocast(ids.device.type, enabled=False):
            mixed = F.linear(unit_rms(streams.flatten(2).float(), self.config.rms_norm_eps), self.hc_head_fn.float())
            pre = torch.sigmoid(mixed * self.hc_head_scale + self.hc_head_base) + self.config.hc_eps
        logits = self.head(self.norm(collapse(streams, pre)))[:, :length]
        return ModelOutput(logits.float(), found, loads)
