"""What the embedded engine stores of a V4.1 request, read out of its pages by formulas of the tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

import fp4_oracle
import kv_oracle
from dsv4_serve.engines.embedded.v41.forward_pass import ForwardPass
from dsv4_serve.engines.embedded.v41.indexer import V41Indexer
from dsv4_serve.engines.embedded.v41.model import V41Model
from embedded.harness import Run
from embedded.v41_straight_line import Kind, StraightLine
from embedded.v41_straight_line_attention import Rounding
from embedded.v41_straight_line_engram import compressed_ids
from embedded.v41_straight_line_formats import exact

ENGINE = Rounding(activation=exact)
"""The engine computes in float32; it rounds rows, keys, queries and head weights, and what its router reads."""
ENGINE_FLOAT_INDEX = Rounding(activation=exact, index=exact)
RING = 136


def straight_line(directory: Path, rounding: Rounding = ENGINE, **more: Any) -> StraightLine:
    """The straight-line model of a directory's checkpoint, config and tokenizer."""
    config = json.loads((directory / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    ids = range(tokenizer.get_vocab_size(with_added_tokens=True))
    texts = [tokenizer.decode([i], skip_special_tokens=False) for i in ids]
    compressed = compressed_ids(texts, [str(tokenizer.id_to_token(i)) for i in ids])
    padding = [compressed[config["engram_pad_token_id"]]] * (config["vocab_size"] - len(compressed))
    return StraightLine(load_file(directory / "model.safetensors"), config, compressed + padding, rounding, **more)


@dataclass
class Noting:
    """An indexer that keeps what it chose for the tokens of a chunk, int64 [T, index_topk]."""

    indexer: V41Indexer
    chosen: list[Tensor]

    @property
    def input_projection(self) -> Tensor:
        return self.indexer.input_projection

    def choose(self, latent: Tensor, head_weights: Tensor, of: ForwardPass) -> Tensor:
        chosen = self.indexer.choose(latent, head_weights, of)
        self.chosen += [chosen[segment.rows] for segment in of.batch.segments]
        return chosen


def as_mask(chosen: Tensor, entries: int) -> Tensor:
    """bool [T, entries] of entries [T, k], -1 padded."""
    mask = torch.zeros(len(chosen), entries + 1, dtype=torch.bool)
    return mask.scatter_(1, chosen.masked_fill(chosen < 0, entries), True)[:, :entries]


class EngineRows:
    """A run, prefilled, and what the model stored of it: see `v41_straight_line.Stored`.

    A slot keeps the last window rows alone, and nobody keeps choices: both are noted chunk by chunk. `logits` float32
    [T, vocab]; `choices` bool [T, entries] by index source.
    """

    def __init__(self, model: V41Model, token_ids: list[int]) -> None:
        self.model, self.run = model, Run(model, token_ids)
        self.windows: list[list[Tensor]] = [[] for _ in model.attentions]
        noted: dict[int, list[Tensor]] = {}
        for layer, attention in enumerate(model.attentions):
            if attention.indexer is not None:
                noted[layer] = []
                attention.indexer = cast(V41Indexer, Noting(attention.indexer, noted[layer]))
        logits = [self._chunk(start) for start in range(0, len(token_ids), 128)]
        self.logits = torch.cat(logits)
        ratios = model.config.compress_ratios
        self.choices = {
            layer: as_mask(torch.cat(rows), len(token_ids) // ratios[layer]) for layer, rows in noted.items()
        }

    def _chunk(self, start: int) -> Tensor:
        stop = min(start + 128, len(self.run.token_ids))
        logits = self.run.prefill(256, stop, start)
        for layer, attention in enumerate(self.model.attentions):
            self.windows[layer].append(attention.ring.rows[self.run.slot, torch.arange(start, stop) % RING])
        return logits

    def __call__(self, kind: Kind, layer: int) -> Tensor:
        if kind == "window":
            return torch.cat(self.windows[layer])
        per_page = self.model.pools.entries_per_page(layer)
        slots = [page * per_page + e for page in self.run.pages for e in range(per_page)]
        slots = slots[: len(self.run.token_ids) * per_page // 256]
        return self._entries(layer, slots, per_page) if kind == "entries" else self._keys(layer, slots)

    def _entries(self, layer: int, slots: list[int], per_page: int) -> Tensor:
        pages = self.model.pools.entries[layer].pages.numpy()
        found = []
        for slot in slots:
            data, scale = kv_oracle.places("v41_fp4", per_page, slot % per_page)
            page = pages[slot // per_page]
            found.append(kv_oracle.decode("v41_fp4", page[data : data + 256], page[scale : scale + 32]))
        return torch.from_numpy(np.array(found))

    def _keys(self, layer: int, slots: list[int]) -> Tensor:
        pool = self.model.pools.index[layer]
        if pool.spec.layout.name == "float32":
            return pool.payload.view(-1, 128)[slots]
        payload, scale = pool.payload.view(torch.uint8).flatten().numpy(), pool.scale.flatten().numpy()
        return torch.from_numpy(fp4_oracle.read_keys(pool.spec.layout.name, payload, scale, np.array(slots)))
