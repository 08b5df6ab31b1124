"""The DSpark drafter: a few layers that draft a block of tokens in one pass, from the model's hidden states.

As published: the hidden states of some of the model's layers, one row a token of the text, are projected to one row,
which every stage turns into a key of its own. A block is the newest token and noise; in every stage each of its rows
sees the last 128 keys of the text and the whole block. The model's own head and the Markov head name the tokens.
"""

from __future__ import annotations

import torch
from torch.nn.functional import rms_norm

from ..geometry import TILE_SLOTS
from ..linear import Projection, pad_rows
from .block import DraftBlock
from .config import DrafterConfig
from .markov import MarkovHead
from .stages import Stages
from .weights import MAIN_NORM, MAIN_PROJECTION, MARKOV_AFTER, MARKOV_BEFORE


class Drafter:
    """The network, and in its stages the context of every working slot.

    `weights` are named as a model's (see `weights.model_names`); `embed` and `head` [vocab, hidden] are the model's.
    """

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        config: DrafterConfig,
        stages: Stages,
        embed: torch.Tensor,
        head: torch.Tensor,
    ) -> None:
        self.config, self._stages, self._embed, self._head = config, stages, embed, Projection(head)
        self._main, self._main_norm = Projection(weights[MAIN_PROJECTION]), weights[MAIN_NORM]
        self._norm, self._rms = weights["norm.weight"], config.stage.rms_norm_eps
        self._markov = MarkovHead(weights[MARKOV_BEFORE], weights[MARKOV_AFTER])

    def reset(self, slot: int) -> None:
        """Forget a slot's context: masked rows have weight zero, but zero times NaN would not be zero."""
        for attention in self._stages.attentions:
            attention.ring.reset(slot)

    @torch.inference_mode()
    def follow(self, hidden: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        """Take hidden states float32 [n, targets * hidden] into the context: of tokens at these positions and working
        slots (int64 [n]), at most 128 of a slot."""
        main = self._main(pad_rows(hidden))
        main = rms_norm(main, main.shape[-1:], self._main_norm, self._rms)
        ring_rows = slots * TILE_SLOTS + positions % TILE_SLOTS
        for attention in self._stages.attentions:
            attention.follow(main, pad_rows(positions), ring_rows)

    @torch.inference_mode()
    def draft(self, block: DraftBlock) -> torch.Tensor:
        """Tokens int64 [n, size] that may follow the anchors of a block."""
        return self._markov.choose(self.logits(block), block.anchors)

    @torch.inference_mode()
    def logits(self, block: DraftBlock) -> torch.Tensor:
        """What the stages say of a block's tokens, each without the one before it: float32 [n, size, vocab]."""
        x = self._stages.forward(self._embed[block.token_ids], block)
        x = rms_norm(x, x.shape[-1:], self._norm, self._rms)
        return self._head(x)[: block.rows].view(block.requests, block.size, -1)
