"""The DeepSeek-V4.1 forward pass over paged caches; text only."""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm

from ..batch import ForwardBatch
from ..hidden_tap import HiddenTap
from ..hyper import STREAMS
from ..linear import Projection, pad_rows
from ..options import EngineOptions
from ..tokenizer import load_tokenizer
from .config import V41Config
from .engram import Engram
from .forward_pass import ForwardPass
from .layer import first_pre
from .ngram import NgramHash, folded_ids
from .pools import V41Pools
from .recent_tokens import recent_tokens
from .stack import Stack


class V41Model:
    """DeepSeek-V4.1 with its working state; the caches are `pools`. See `causal_model.CausalModel`."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        config: V41Config,
        options: EngineOptions,
        pools: V41Pools,
        context_length: int,
        ngrams: NgramHash | None,
    ) -> None:
        self.config, self.pools, self._ngrams = config, pools, ngrams
        self.tap: HiddenTap | None = None
        self._stack = Stack(weights, config, options, pools, context_length)
        self.attentions, self.layers = self._stack.attentions, self._stack.layers
        self._engrams = {
            layer: (Engram(weights, f"layers.{layer}.engram.", config), place)
            for place, layer in enumerate(config.engram_layer_ids)
        }
        self._embed, self._head = weights["embed.weight"], Projection(weights["head.weight"])
        self._norm = weights["norm.weight"]

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, every_row: bool = False) -> torch.Tensor:
        """Logits float32 [len(batch.last_rows), vocab], or of every row with `every_row`.

        Writes the caches of the batch's pages and the working state of its slots.
        """
        of = ForwardPass.of(batch, self._table_rows(batch))
        streams = self._embed[batch.token_ids].unsqueeze(1).repeat(1, STREAMS, 1)
        pre = first_pre(streams.shape[0], STREAMS)
        with self._stack.one_pass():
            for number, layer in enumerate(self.layers):
                if number in self._engrams:
                    engram, place = self._engrams[number]
                    assert of.ngrams is not None
                    streams = engram.add(streams, of.ngrams[:, place])
                if self.tap is not None:
                    self.tap.put(number, streams)
                streams, pre = layer.forward(streams, pre, of)
        wanted = slice(batch.rows) if every_row else batch.last_rows
        x = torch.bmm(pre.unsqueeze(1), streams).squeeze(1)[wanted]
        rows = x.shape[0]
        x = rms_norm(pad_rows(x), x.shape[-1:], self._norm, self.config.rms_norm_eps)
        return self._head(x)[:rows]

    def _table_rows(self, batch: ForwardBatch) -> torch.Tensor | None:
        """Rows of the engram tables, int64 [T, engram layers, columns]."""
        return None if self._ngrams is None else self._ngrams.rows(recent_tokens(batch, self._ngrams.places))

    def reset_slot(self, slot: int) -> None:
        """Forget the working state of a slot before another request takes it. Open pairs need none of that."""
        for attention in self.attentions:
            attention.ring.reset(slot)

    def save_tail(self, slot: int, boundary: int, tail: int) -> None:
        """Keep what a later request needs to continue after `boundary` tokens: window rows."""
        for number, attention in enumerate(self.attentions):
            self.pools.write_window(number, tail, attention.ring.last(slot, boundary))

    def restore_tail(self, slot: int, boundary: int, tail: int) -> None:
        """Put a kept tail into a working slot."""
        for number, attention in enumerate(self.attentions):
            attention.ring.restore(slot, boundary, self.pools.read_window(number, tail))


def build_v41(
    weights: dict[str, torch.Tensor], config: V41Config, options: EngineOptions, context_length: int
) -> V41Model:
    """The model over fresh pools. Raises TokenizerError or ConfigError where the n-grams' token ids do not fit."""
    ngrams = load_ngrams(config, options) if config.engram_layer_ids else None
    return V41Model(weights, config, options, V41Pools(config, options, context_length), context_length, ngrams)


def load_ngrams(config: V41Config, options: EngineOptions) -> NgramHash:
    """The n-gram hash of a model directory, whose tokenizer must fold into as many ids as the tables were made for."""
    folded, size = folded_ids(load_tokenizer(options.model_path).full)
    config.require(
        size == config.engram_compressed_vocab_size, "engram_compressed_vocab_size", f"{size}, by the tokenizer"
    )
    pad = config.engram_pad_token_id
    config.require(0 <= pad < len(folded), "engram_pad_token_id", f"a token, 0 to {len(folded) - 1}")
    hashes = NgramHash(config.engram_buckets, config.engram_layer_ids, folded, size, pad)
    return hashes.to(torch.device(options.device))
