"""Choosing tokens from logits: greedy, temperature, top-k, top-p, seeds, log-probabilities.

Each request draws one uniform number a token from its own generator, so its tokens do not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .request import SamplingParams


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token with its log-probability and the most likely alternatives (both under temperature 1)."""

    token_id: int
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...]


class RequestSampler:
    """The parameters of one request and its source of randomness, which survives retraction."""

    def __init__(self, params: SamplingParams, fallback_seed: int) -> None:
        self.params = params
        seed = params.seed if params.seed is not None else fallback_seed
        self._generator = torch.Generator("cpu").manual_seed(seed)

    def uniform(self) -> float:
        """The next number in [0, 1)."""
        return float(torch.rand((), generator=self._generator, dtype=torch.float64, device="cpu"))

    def scripted(self, produced: int) -> int | None:
        """The token that a test's script forces at this place, if any."""
        script = self.params.script
        return script[produced] if script is not None and produced < len(script) else None


def sample(logits: torch.Tensor, samplers: Sequence[RequestSampler], produced: Sequence[int]) -> list[Choice]:
    """One token a row: logits float32 [n, vocab], the request of each row, and how many tokens it has already.

    Greedy rows take the lowest id among the highest logits. Other rows divide by the temperature, keep the top_k
    highest, then the smallest set whose probability reaches top_p (at least one), and invert the cumulative sum.
    """
    tokens = logits.argmax(-1).tolist()
    random = [i for i, s in enumerate(samplers) if s.params.temperature > 0]
    if random:
        for row, token in zip(random, _draw(logits[random], [samplers[i] for i in random]), strict=True):
            tokens[row] = token
    for row, sampler in enumerate(samplers):
        forced = sampler.scripted(produced[row])
        tokens[row] = tokens[row] if forced is None else forced
    return _with_logprobs(logits, tokens, samplers)


def _draw(logits: torch.Tensor, samplers: Sequence[RequestSampler]) -> list[int]:
    params = [s.params for s in samplers]
    vocab = logits.shape[1]
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64)[:, None]
    order = torch.sort(logits, stable=True, dim=-1, descending=True)
    # Less the highest first: at a temperature next to 0 the quotient of any other number is infinite.
    probabilities = ((order.values - order.values[:, :1]).double() / temperature).softmax(-1)
    rank = torch.arange(vocab)
    top_k = torch.tensor([min(p.top_k or vocab, vocab) for p in params])[:, None]
    probabilities = probabilities.masked_fill_(rank >= top_k, 0)
    probabilities /= probabilities.sum(-1, keepdim=True)
    before = probabilities.cumsum(-1) - probabilities
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64)[:, None]
    # The first token always stays: nothing comes before it.
    probabilities = probabilities.masked_fill_((before >= top_p) & (rank > 0), 0)
    cumulative = probabilities.cumsum(-1)
    point = torch.tensor([s.uniform() for s in samplers], dtype=torch.float64)[:, None] * cumulative[:, -1:]
    place = (cumulative <= point).sum(-1, keepdim=True)
    # Rounding can push the point past the last live token; that token is meant then.
    last = (probabilities > 0).sum(-1, keepdim=True) - 1
    chosen: list[int] = order.indices.gather(1, torch.minimum(place, last)).view(-1).tolist()
    return chosen


def _with_logprobs(logits: torch.Tensor, tokens: list[int], samplers: Sequence[RequestSampler]) -> list[Choice]:
    choices = [Choice(token, None, ()) for token in tokens]
    for row, sampler in enumerate(samplers):
        wanted = sampler.params.logprobs
        if wanted is None:
            continue
        logprobs = logits[row].log_softmax(-1)
        best = torch.sort(logprobs, stable=True, dim=-1, descending=True)
        top = zip(best.indices[:wanted].tolist(), best.values[:wanted].tolist(), strict=True)
        choices[row] = Choice(tokens[row], float(logprobs[tokens[row]]), tuple(top))
    return choices
