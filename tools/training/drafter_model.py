"""The DSpark drafter of either generation for training; state_dict() keys are its checkpoint's own tensor names."""

from typing import cast

import torch
import torch.nn.functional as F
from tools.training.drafter_stage import BlockRope, Blocks, DraftStage
from tools.training.layers import RMSNorm, unit_rms
from tools.training.model import collapse, initialise
from tools.training.rope import RopeTable
from tools.training.selection import take
from torch import Tensor, nn

from dsv4_serve.engines.embedded.dspark.config import DrafterConfig
from dsv4_serve.engines.embedded.v41.config import V41Config


class MarkovHead(nn.Module):
    """A bias of low rank on a row's logits by the token before it; the generations have other names for its tables."""

    def __init__(self, vocab: int, rank: int, v41: bool) -> None:
        super().__init__()
        before, after = ("embed", "head") if v41 else ("markov_w1", "markov_w2")
        self.add_module(before, nn.Embedding(vocab, rank))
        self.add_module(after, nn.Linear(rank, vocab, bias=False))
        self._before, self._after = before, after

    def forward(self, before: Tensor) -> Tensor:
        """before int64 [...] to float [..., vocab]."""
        bias: Tensor = self.get_submodule(self._after)(self.get_submodule(self._before)(before))
        return bias


class OuterStage(DraftStage):
    """The first or last stage, or both: the first has what projects the model's states, the last what stands before the
    model's head."""

    main_proj: nn.Linear
    main_norm: RMSNorm
    norm: RMSNorm
    hc_head_fn: nn.Parameter
    hc_head_base: nn.Parameter
    hc_head_scale: nn.Parameter
    markov_head: MarkovHead


class TinyDrafter(nn.Module):
    """The drafter beside a frozen model, whose embedding and head [vocab, hidden] it reads."""

    embed: Tensor
    head: Tensor

    def __init__(self, config: DrafterConfig, embed: Tensor, head: Tensor) -> None:
        super().__init__()
        self.config, stage = config, config.stage
        self.v41 = isinstance(stage, V41Config)
        self.register_buffer("embed", embed.detach().clone(), persistent=False)
        self.register_buffer("head", head.detach().clone(), persistent=False)
        ends = (0, config.stages - 1)
        kinds = [OuterStage if number in ends else DraftStage for number in range(config.stages)]
        self.mtp = nn.ModuleList(kind(stage, self.v41) for kind in kinds)
        first, last, hidden, streams = *self._ends(), stage.hidden_size, stage.hc_mult
        first.main_proj = nn.Linear(hidden * len(config.target_layers), hidden, bias=False)
        first.main_norm = RMSNorm(hidden, stage.rms_norm_eps)
        last.norm = RMSNorm(hidden, stage.rms_norm_eps)
        last.markov_head = MarkovHead(stage.vocab_size, config.markov_rank, self.v41)
        if not self.v41:
            last.hc_head_fn = nn.Parameter(torch.empty(streams, streams * hidden))
            last.hc_head_base = nn.Parameter(torch.zeros(streams))
            last.hc_head_scale = nn.Parameter(torch.ones(1))

    def _ends(self) -> tuple[OuterStage, OuterStage]:
        return cast(OuterStage, self.mtp[0]), cast(OuterStage, self.mtp[-1])

    def initialise(self, seed: int) -> None:
        """Random matrices. V4.1's queries have no norm of their own: these give them unit variance, as V4's does."""
        initialise(self, seed)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if self.v41 and name.endswith("attn.wq_b.weight"):
                nn.init.normal_(parameter, std=self.config.stage.q_lora_rank**-0.5, generator=generator)

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
        places = anchors[..., None] + torch.arange(size, device=ids.device)
        context = first.main_norm(first.main_proj(hidden))
        blocks = self._blocks(anchors, places, ids.shape[1])
        tokens = torch.full_like(places, self.config.noise_token)
        tokens[..., 0] = take(ids, anchors)
        tokens = tokens.flatten(1)
        streams = self.embed[tokens][:, :, None].expand(-1, -1, stage.hc_mult, -1).float()
        pre = torch.zeros_like(streams[..., 0])
        pre[..., 0] = 1.0
        for module in self.mtp:
            streams, pre = cast(DraftStage, module).draft(streams, pre, tokens, context, blocks)
        pre = pre if self.v41 else self._head_weights(streams)
        logits = F.linear(last.norm(collapse(streams, pre)), self.head).float()
        bias: Tensor = last.markov_head(take(F.pad(ids, (0, size)), places.flatten(1)))
        return torch.unflatten(logits + bias.float(), 1, places.shape[1:])

    def _blocks(self, anchors: Tensor, places: Tensor, length: int) -> Blocks:
        """Each block reads the window of the text before its anchor."""
        stage, back = self.config.stage, anchors[..., None] - torch.arange(length, device=anchors.device)
        text = RopeTable(stage, length + self.config.block, False, anchors.device)
        seen = (back > 0) & (back <= stage.sliding_window)
        return Blocks(self.config.block, text, BlockRope(text, places.flatten(1)), seen)

    def _head_weights(self, streams: Tensor) -> Tensor:
        """How V4's last streams are read."""
        last, stage = self._ends()[1], self.config.stage
        with torch.autocast(streams.device.type, enabled=False):
            mixed = F.linear(unit_rms(streams.flatten(2).float(), stage.rms_norm_eps), last.hc_head_fn.float())
            return torch.sigmoid(mixed * last.hc_head_scale + last.hc_head_base) + stage.hc_eps
