"""DeepSeek-V4.1 in plain torch for training; state_dict() keys are DeepSeek's own tensor names.

Each sublayer's hyper-connection weights say how the NEXT one reads the residual streams; the first reads stream 0.
"""

import torch
import torch.nn.functional as F
from tools.training.layers import RMSNorm
from tools.training.model import HyperConnected, ModelOutput, MoE, collapse, expand, initialise
from tools.training.rope import RopeTable
from tools.training.selection import IndexMode, take
from tools.training.v41.attention import Attention, Published, Reading
from tools.training.v41.engram import Engram, byte_hash, rows_of
from tools.training.v41.probes import Seen, index_probes
from torch import Tensor, nn

from dsv4_serve.engines.embedded.v41.config import V41Config


class Layer(HyperConnected):
    """Attention and MoE, each between a collapse and an expand of the residual streams; an engram before both."""

    def __init__(self, config: V41Config, number: int) -> None:
        super().__init__(config)
        self.attn = Attention(config, number)
        self.ffn = MoE(config, hashed=False)
        self.engram: Engram | None = None
        if number in config.engram_layer_ids:
            self.engram = Engram(config, config.engram_num_embeddings[config.engram_layer_ids.index(number)])

    def forward(
        self,
        streams: Tensor,
        pre: Tensor,
        ids: Tensor,
        rope: RopeTable,
        shared: Published | None,
        mode: IndexMode,
        probes: Tensor | None,
    ) -> tuple[Tensor, Tensor, Published | None, Reading, Tensor | None]:
        """Streams [batch, length, n, hidden] and how to read them, before and after; besides, what attention gives and
        the load of the router."""
        next_pre, post, comb = self.mix("attn", streams)
        out, shared, reading = self.attn(self.read("attn", streams, pre), rope, shared, mode, probes)
        streams = expand(streams, out, post, comb)
        pre, post, comb = self.mix("ffn", streams)
        out, load = self.ffn(self.read("ffn", streams, next_pre), ids)
        return expand(streams, out, post, comb), pre, shared, reading, load


class TinyV41(nn.Module):
    """The language model."""

    def __init__(self, config: V41Config) -> None:
        super().__init__()
        self.config, self.ngrams = config, byte_hash(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def initialise(self, seed: int) -> None:
        """Random weights. Queries have no norm of their own: these give them unit variance, as V4's norm does."""
        initialise(self, seed)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith("attn.wq_b.weight"):
                nn.init.normal_(parameter, std=self.config.q_lora_rank**-0.5, generator=generator)

    @staticmethod
    def stays_float(name: str, tensor: Tensor) -> bool:
        """Whether a checkpoint keeps the tensor in float32: sinks, biases and hyper-connections."""
        return "hc_" in name or name.endswith(("attn_sink", "gate.bias"))

    def forward(self, ids: Tensor, mode: IndexMode | None = None, probes: Tensor | None = None) -> ModelOutput:
        """ids int64 [batch, length], length at most max_position_embeddings; probes int64 [batch, n] query rows."""
        config, length = self.config, ids.shape[1]
        if length > config.max_position_embeddings:
            raise ValueError(f"{length} tokens; max_position_embeddings is {config.max_position_embeddings}")
        ids = F.pad(ids, (0, -length % config.sliding_window))
        ropes = {flag: RopeTable(config, ids.shape[1], flag, ids.device) for flag in (False, True)}
        hashes = rows_of(self.ngrams.to(ids.device), ids)
        streams = self.embed(ids)[:, :, None].expand(-1, -1, config.hc_mult, -1).float()
        pre = torch.zeros_like(streams[..., 0])
        pre[..., 0] = 1.0
        shared: Published | None = None
        loads: list[Tensor] = []
        seen: list[Seen | None] = []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            if layer.engram is not None:
                streams = layer.engram(streams, hashes[config.engram_layer_ids.index(number)])
            rope = ropes[config.compress_ratios[number] > 0]
            streams, pre, shared, reading, load = layer(streams, pre, ids, rope, shared, mode or IndexMode(), probes)
            loads.append(load)
            seen.append(None if probes is None else _seen(shared, reading, probes))
        probed = list(index_probes(seen, config.candidate_source_layer_id, config.candidate_block_size))
        logits = self.head(self.norm(collapse(streams, pre)))[:, :length]
        return ModelOutput(logits.float(), probed, loads)


def _seen(shared: Published | None, reading: Reading, probes: Tensor) -> Seen | None:
    if shared is None or reading.mass is None:
        return None
    visible = take(shared.visible.expand(len(probes), -1, -1), probes)
    return Seen(shared.chosen_by, visible, reading.scores, reading.mass)
