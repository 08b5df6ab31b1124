"""The DSpark drafter in plain torch for training; state_dict() keys are its checkpoint's own tensor names.

Blocks begin at chosen anchors of whole rows. A block's keys are the 128 rows of context before its anchor, gathered,
and its own; all blocks are computed side by side.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from tools.training.layers import RMSNorm, unit_rms
from tools.training.model import Layer, collapse, expand, initialise
from tools.training.rope import RopeTable
from tools.training.selection import take
from torch import Tensor, nn

from dsv4_serve.engines.embedded.config import ModelConfig
from dsv4_serve.engines.embedded.dspark.config import DrafterConfig


class BlockRope(RopeTable):
    """The rows of a table at positions int64 [blocks, n]."""

    def __init__(self, table: RopeTable, positions: Tensor) -> None:
        self.cos, self.sin = table.cos[positions], table.sin[positions]

    def rotate(self, x: Tensor, stride: int = 1, inverse: bool = False) -> Tensor:
        """Rotate x [blocks, n, (heads,) dim], every row at its own position. Keeps shape and dtype."""
        assert stride == 1
        cos, sin = (self.cos, -self.sin) if inverse else (self.cos, self.sin)
        if x.ndim == 4:
            cos, sin = cos[:, :, None], sin[:, :, None]
        width = 2 * cos.shape[-1]
        even, odd = torch.unflatten(x[..., -width:].float(), -1, (-1, 2)).unbind(-1)
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
        return torch.cat((x[..., :-width], turned.to(x.dtype)), dim=-1)


@dataclass(frozen=True)
class Blocks:
    """Where blocks lie: `rope` at their rows, `window` at the `context` rows before them, of which `seen` bool
    [blocks, 128] exist."""

    rope: BlockRope
    window: BlockRope
    seen: Tensor


class DraftStage(Layer):
    """One stage: a layer with a window only, whose rows see the context and each other.

    The first stage has what projects the model's states, the last what stands before the model's head.
    """

    main_proj: nn.Linear
    main_norm: RMSNorm
    norm: RMSNorm
    hc_head_fn: nn.Parameter
    hc_head_base: nn.Parameter
    hc_head_scale: nn.Parameter
    markov_head: "MarkovHead"

    def draft(self, streams: Tensor, ids: Tensor, context: Tensor, blocks: Blocks) -> Tensor:
        """Streams [blocks, size, 4, hidden] in and out; context [blocks, 128, hidden]."""
        pre, post, comb = self.mix("attn", streams)
        streams = expand(streams, self._attend(self.read("attn", streams, pre), context, blocks), post, comb)
        pre, post, comb = self.mix("ffn", streams)
        out, _ = self.ffn(self.read("ffn", streams, pre), ids)
        return expand(streams, out, post, comb)

    def _attend(self, x: Tensor, context: Tensor, blocks: Blocks) -> Tensor:
        attn, dim = self.attn, self.config.head_dim
        q = attn.query_heads(attn.q_norm(attn.wq_a(x)))
        q = blocks.rope.rotate(unit_rms(q.float(), self.config.rms_norm_eps).to(q.dtype)) * dim**-0.5
        own = blocks.rope.rotate(attn.kv_norm(attn.wkv(x)))
        keys = torch.cat((blocks.window.rotate(attn.kv_norm(attn.wkv(context))), own), dim=1)
        scores = torch.einsum("bqhd,bkd->bqhk", q, keys).float()
        hidden = ~F.pad(blocks.seen, (0, x.shape[1]), value=True)
        scores = scores.masked_fill(hidden[:, None, None], float("-inf"))
        sink = attn.attn_sink.view(1, 1, -1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1].to(keys.dtype)
        out = torch.einsum("bqhk,bkd->bqhd", weights, keys)
        return attn.project_output(out, blocks.rope)


class MarkovHead(nn.Module):
    """A bias of low rank on a row's logits by the token before."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, vocab, bias=False)

    def forward(self, before: Tensor) -> Tensor:
        bias: Tensor = self.markov_w2(self.markov_w1(before))
        return bias


class TinyDrafter(nn.Module):
    """The drafter beside a frozen model, whose embedding and head [vocab, hidden] it reads."""

    embed: Tensor
    head: Tensor

    def __init__(self, config: DrafterConfig, embed: Tensor, head: Tensor) -> None:
        super().__init__()
        self.config, stage = config, config.stage
        assert isinstance(stage, ModelConfig)
        self.register_buffer("embed", embed.detach().clone(), persistent=False)
        self.register_buffer("head", head.detach().clone(), persistent=False)
        self.mtp = nn.ModuleList(DraftStage(stage, index) for index in range(config.stages))
        first, last, hidden, streams = *self._ends(), stage.hidden_size, stage.hc_mult
        first.main_proj = nn.Linear(hidden * len(config.target_layers), hidden, bias=False)
        first.main_norm = RMSNorm(hidden, stage.rms_norm_eps)
        last.norm = RMSNorm(hidden, stage.rms_norm_eps)
        last.hc_head_fn = nn.Parameter(torch.empty(streams, streams * hidden))
        last.hc_head_base = nn.Parameter(torch.zeros(streams))
        last.hc_head_scale = nn.Parameter(torch.ones(1))
        last.markov_head = MarkovHead(stage.vocab_size, config.markov_rank)

    def _ends(self) -> tuple[DraftStage, DraftStage]:
        return cast(DraftStage, self.mtp[0]), cast(DraftStage, self.mtp[-1])

    def initialise(self, seed: int) -> None:
        """Random matrices."""
        initialise(self, seed)

    @staticmethod
    def stays_float(name: str, tensor: Tensor) -> bool:
        """Whether a checkpoint keeps the tensor in float32: norms, sinks and biases, not hyper-connections here."""
        return tensor.ndim < 2

    def forward(self, hidden: Tensor, ids: Tensor, anchors: Tensor) -> Tensor:
        """Logits float32 [batch, n, size, vocab] of blocks at `anchors` int64 [batch, n] (1 or more) of rows ids int64
        [batch, length], whose target layers' states are `hidden` [batch, length, targets * hidden]. The Markov head is
        told the row's own tokens."""
        size, stage = self.config.block, self.config.stage
        first, last = self._ends()
        back = anchors[..., None] + torch.arange(-stage.sliding_window, 0, device=ids.device)
        places = anchors[..., None] + torch.arange(size, device=ids.device)
        main = first.main_norm(first.main_proj(hidden))
        context = _gather(main, back.clamp(min=0)).flatten(0, 1)
        rope = RopeTable(stage, ids.shape[1] + size, False, ids.device)
        window = BlockRope(rope, back.clamp(min=0).flatten(0, 1))
        blocks = Blocks(BlockRope(rope, places.flatten(0, 1)), window, back.flatten(0, 1) >= 0)
        tokens = torch.full_like(places, self.config.noise_token)
        tokens[..., 0] = take(ids, anchors)
        tokens = tokens.flatten(0, 1)
        streams = self.embed[tokens][:, :, None].expand(-1, -1, stage.hc_mult, -1)
        for module in self.mtp:
            streams = cast(DraftStage, module).draft(streams, tokens, context, blocks)
        with torch.autocast(ids.device.type, enabled=False):
            mixed = F.linear(unit_rms(streams.flatten(2).float(), stage.rms_norm_eps), last.hc_head_fn.float())
            pre = torch.sigmoid(mixed * last.hc_head_scale + last.hc_head_base) + stage.hc_eps
        logits = torch.unflatten(F.linear(last.norm(collapse(streams, pre)), self.head), 0, anchors.shape)
        bias: Tensor = last.markov_head(_gather(F.pad(ids, (0, size)), places))
        return logits.float() + bias.float()


def _gather(x: Tensor, rows: Tensor) -> Tensor:
    """x [batch, length, ...] at rows [batch, n, m] -> [batch, n, m, ...]."""
    return torch.unflatten(take(x, rows.flatten(1)), 1, rows.shape[1:])
