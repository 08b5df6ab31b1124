"""The DeepSeek-V4 forward pass over paged caches."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import torch
from torch.nn.functional import rms_norm

from .attention import Attention
from .batch import ForwardBatch
from .config import ModelConfig
from .hidden_tap import HiddenTap
from .hyper import STREAMS, HyperConnection, HyperHead
from .indexer import Indexer
from .linear import Projection, pad_rows
from .moe import MoE
from .options import EngineOptions
from .rope import rope_tables
from .v4_pools import V4Pools


class TokenBatch(Protocol):
    """What a layer reads of a batch itself: its token ids, int64 [T]."""

    @property
    def token_ids(self) -> torch.Tensor: ...


Batch = TypeVar("Batch", bound=TokenBatch)
BatchIn = TypeVar("BatchIn", bound=TokenBatch, contravariant=True)


class Mixer(Protocol[BatchIn]):
    """A layer's attention: normalised block input [T, hidden] to its output [T, hidden]."""

    def forward(self, x: torch.Tensor, batch: BatchIn) -> torch.Tensor: ...


class Layer(Generic[Batch]):
    """Attention and experts, each inside a hyper-connection."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        number: int,
        config: ModelConfig,
        attention: Mixer[Batch],
    ) -> None:
        prefix = f"layers.{number}."
        self._attention = attention
        self._moe = MoE(weights, prefix + "ffn.", config)
        self._rms = config.rms_norm_eps
        self._norms = [weights[f"{prefix}{part}_norm.weight"] for part in ("attn", "ffn")]
        self._attn_hc, self._ffn_hc = (
            HyperConnection.of(weights, f"{prefix}hc_{part}_", config) for part in ("attn", "ffn")
        )

    def forward(self, streams: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Residual streams [T, 4, hidden] in and out."""
        x, mixed, post = self._attn_hc.split(streams)
        x = rms_norm(x, x.shape[-1:], self._norms[0], self._rms)
        streams = HyperConnection.join(mixed, post, self._attention.forward(x, batch))
        x, mixed, post = self._ffn_hc.split(streams)
        x = rms_norm(x, x.shape[-1:], self._norms[1], self._rms)
        return HyperConnection.join(mixed, post, self._moe.forward(x, batch.token_ids))


class Model:
    """DeepSeek-V4 with its working state; the caches are `pools`."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        config: ModelConfig,
        options: EngineOptions,
        pools: V4Pools,
        context_length: int,
        ablate_index: bool = False,
    ) -> None:
        self.config, self.pools = config, pools
        self.tap: HiddenTap | None = None
        plain, yarn = rope_tables(config, context_length)
        slots = pools.working_slots
        self.layers: list[Layer[ForwardBatch]] = []
        self.attentions: list[Attention] = []
        for number, ratio in enumerate(config.compress_ratios):
            prefix = f"layers.{number}.attn."
            rope = yarn if ratio else plain
            indexer = None
            if ratio == 4:
                pool = pools.index[number]
                picks = options.index_topk
                indexer = Indexer(
                    weights, prefix + "indexer.", config, rope, pool, slots, ablate_index, picks, options.rowgroup
                )
            attention = Attention(
                weights,
                prefix,
                config,
                ratio,
                rope,
                pools.entries.get(number),
                indexer,
                slots,
                pools.kv_format,
                context_length,
            )
            self.attentions.append(attention)
            self.layers.append(Layer(weights, number, config, attention))
        self._embed, self._head = weights["embed.weight"], Projection(weights["head.weight"])
        self._norm = weights["norm.weight"]
        self._hc_head = HyperHead(
            weights["hc_head_fn"],
            weights["hc_head_base"],
            weights["hc_head_scale"],
            config.hc_eps,
            config.rms_norm_eps,
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, every_row: bool = False) -> torch.Tensor:
        """Logits float32 [len(batch.last_rows), vocab], or of every row with `every_row`.

        Writes the caches of the batch's pages and the working state of its slots.
        """
        streams = self._embed[batch.token_ids].unsqueeze(1).repeat(1, STREAMS, 1)
        for number, layer in enumerate(self.layers):
            streams = layer.forward(streams, batch)
            if self.tap is not None:
                self.tap.put(number, streams)
        wanted = streams[: batch.rows] if every_row else streams[batch.last_rows]
        x = self._hc_head.collapse(pad_rows(wanted))
        x = rms_norm(x, x.shape[-1:], self._norm, self.config.rms_norm_eps)
        return self._head(x)[: wanted.shape[0]]

    def reset_slot(self, slot: int) -> None:
        """Forget the working state of a slot before another request takes it."""
        for attention in self.attentions:
            attention.ring.reset(slot)
            if attention.compressor is not None:
                attention.compressor.reset(slot)
            if attention.indexer is not None:
                attention.indexer.compressor.reset(slot)

    def save_tail(self, slot: int, boundary: int, tail: int) -> None:
        """Keep what a later request needs to continue after `boundary` tokens: window rows and overlap state."""
        for number, attention in enumerate(self.attentions):
            self.pools.write_window(number, tail, attention.ring.last(slot, boundary))
            if attention.compressor is not None and attention.compressor.overlap:
                self.pools.overlap[number][tail] = attention.compressor.save_overlap(slot, boundary)
            if attention.indexer is not None:
                self.pools.index_overlap[number][tail] = attention.indexer.compressor.save_overlap(slot, boundary)

    def restore_tail(self, slot: int, boundary: int, tail: int) -> None:
        """Put a kept tail into a working slot."""
        for number, attention in enumerate(self.attentions):
            attention.ring.restore(slot, boundary, self.pools.read_window(number, tail))
            if attention.compressor is not None and attention.compressor.overlap:
                attention.compressor.restore_overlap(slot, boundary, self.pools.overlap[number][tail])
            if attention.indexer is not None:
                state = self.pools.index_overlap[number][tail]
                attention.indexer.compressor.restore_overlap(slot, boundary, state)
