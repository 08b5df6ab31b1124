"""The head of a drafter: which tokens a block of hidden states means, each one after the one before it."""

from __future__ import annotations

import torch

from ..linear import Projection, pad_rows


class MarkovHead:
    """Adds to a row's logits a bias by the token before it, of low rank: `after` [vocab, rank] of `before`'s row.

    The stages see the block's unknown tokens as noise, all at once; this is all that makes them fit each other.
    """

    def __init__(self, before: torch.Tensor, after: torch.Tensor) -> None:
        self._before, self._after = before, Projection(after)

    def choose(self, logits: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """The likeliest tokens int64 [n, size], from left to right, of logits float32 [n, size, vocab].

        `anchors` int64 [n] are the tokens before the blocks.
        """
        chosen = [anchors]
        for place in range(logits.shape[1]):
            bias = self._after(pad_rows(self._before[chosen[-1]]))[: len(anchors)]
            chosen.append((logits[:, place] + bias).argmax(-1))
        return torch.stack(chosen[1:], 1)
