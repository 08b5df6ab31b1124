"""The DeepSeek-V4.1 forward pass over paged caches; text only."""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm

from ..batch import ForwardBatch
from ..hidden_tap import HiddenTap
from ..hyper import STREAMS
from ..linear import Projection, pad_rows
from ..options import EngineOptions
from ..rope import rope_tables
from ..tokenizer import load_tokenizer
from .attention import V41Attention
from .config import V41Config
from .engram import Engram
from .forward_pass import ForwardPass
from .indexer import V41Indexer
from .kv_source import KVSource
from .layer import V41Layer, first_pre
from .ngram import NgramHash, folded_ids
from .pools import V41Pools
from .projections import RowStage
from .recent_tokens import recent_tokens


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
        plain, yarn = rope_tables(config, context_length)
        stage = RowStage()
        sources: dict[int, KVSource] = {}
        self.attentions: list[V41Attention] = []
        self.layers: list[V41Layer[ForwardPass]] = []
        for number, ratio in enumerate(config.compress_ratios):
            prefix, rope = f"layers.{number}.", yarn if ratio else plain
            owns = number in config.kv_source_layer_ids
            if owns:
                sources[number] = KVSource(weights, prefix + "attn.", config, number, rope, pools)
            owner = config.kv_source_of(number)
            source = None if owner is None else sources[owner]
            indexer = None
            if number in config.index_source_layer_ids:
                assert source is not None
                name = prefix + "attn.indexer."
                indexer = V41Indexer(weights, name, config, number, rope, source, options.index_topk, options.rowgroup)
            attention = V41Attention(
                weights, prefix + "attn.", config, rope, stage, pools.working_slots, number, source, owns, indexer
            )
            self.attentions.append(attention)
            self.layers.append(V41Layer(weights, prefix, config, attention))
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
    return NgramHash(config.engram_buckets, config.engram_layer_ids, folded, size, config.engram_pad_token_id)
