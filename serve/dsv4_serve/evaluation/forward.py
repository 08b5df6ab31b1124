"""Teacher-forced passes: the logits of every position of a given text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dsv4_serve.engines.embedded.batch import PromptChunk, make_batch
from dsv4_serve.engines.embedded.causal_model import CausalModel
from dsv4_serve.engines.embedded.config import PAGE_TOKENS
from dsv4_serve.errors import CommandError


@torch.inference_mode()
def every_logit(model: CausalModel, ids: Sequence[int]) -> torch.Tensor:
    """Logits float32 [len(ids), vocab] of one sequence, computed page by page in fresh pages of the model's pools."""
    pools = model.pools
    slot, pages = pools.slots.take(), [pools.pages.take() for _ in range(-(-len(ids) // PAGE_TOKENS))]
    taken = [page for page in pages if page is not None]
    try:
        if slot is None or len(taken) < len(pages):
            raise CommandError(f"a text of {len(ids)} tokens needs {len(pages)} pages: the cache is too small")
        model.reset_slot(slot)
        parts = []
        for start in range(0, len(ids), PAGE_TOKENS):
            chunk = PromptChunk(ids[start : start + PAGE_TOKENS], start, slot, taken, ids[:start])
            parts.append(model.forward(make_batch([], [chunk]), every_row=True))
        return torch.cat(parts)
    finally:
        for page in taken:
            pools.pages.give(page)
        if slot is not None:
            pools.slots.give(slot)


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far the predictions of one variant are from those of exact scores on one text.

    `nats` float32 [n]: the negative log likelihood of each counted token. `kl` is the mean Kullback-Leibler divergence
    in nats, `largest` the largest difference of a logit, `agreement` the share of equal most likely tokens.
    """

    nats: torch.Tensor
    kl: float
    largest: float
    agreement: float


def compare(exact: torch.Tensor, other: torch.Tensor, ids: Sequence[int], skip: int) -> Divergence:
    """Of logits [n, vocab] of one text; the first `skip` tokens are not counted."""
    truth, ours = exact[skip:-1].log_softmax(-1), other[skip:-1].log_softmax(-1)
    targets = torch.tensor(ids[skip + 1 :])
    return Divergence(
        nats=-ours.gather(1, targets[:, None])[:, 0],
        kl=float((truth.exp() * (truth - ours)).sum(-1).mean()),
        largest=float((exact[skip:-1] - other[skip:-1]).abs().max()),
        agreement=float((truth.argmax(-1) == ours.argmax(-1)).float().mean()),
    )
