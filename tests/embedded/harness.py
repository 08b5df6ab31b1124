"""Drives the embedded model directly: pages and slots by hand, logits of every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dsv4_serve.engines.embedded.batch import DecodeRow, PromptChunk, make_batch
from dsv4_serve.engines.embedded.causal_model import CausalModel
from dsv4_serve.engines.embedded.config import PAGE_TOKENS, load_model_config
from dsv4_serve.engines.embedded.families import load_config
from dsv4_serve.engines.embedded.model import Model
from dsv4_serve.engines.embedded.options import EngineOptions
from dsv4_serve.engines.embedded.v4_pools import V4Pools
from dsv4_serve.engines.embedded.weights import load_tensors, load_weights

CONTEXT = 4096
SAFE_MARGIN = 1e-5


def prompt(tokens: int, seed: int = 1) -> list[int]:
    """Random byte tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [int(t) for t in torch.randint(18, 274, (tokens,), generator=generator)]


def build_model(directory: Path, ablate_index: bool = False, **options: Any) -> Model:
    """A model over fresh pools of 16,384 tokens."""
    config = load_model_config(directory)
    chosen = EngineOptions(
        model_path=directory,
        served_model_name="tiny",
        **{"max_total_tokens": 16384, "max_running_requests": 8, **options},
    )
    pools = V4Pools(config, chosen, CONTEXT)
    return Model(load_weights(directory, config), config, chosen, pools, CONTEXT, ablate_index)


def build_any(directory: Path, **options: Any) -> CausalModel:
    """As `build_model`, of whichever generation the directory holds."""
    family, config = load_config(directory)
    chosen = EngineOptions(
        model_path=directory,
        served_model_name="tiny",
        **{"max_total_tokens": 16384, "max_running_requests": 8, **options},
    )
    weights = load_tensors(directory, family.tensor_shapes(config), lambda name: True, "cpu")
    return family.build(weights, config, family.formats.settle(chosen), CONTEXT)


class Run:
    """One sequence's place in a model."""

    def __init__(self, model: CausalModel, token_ids: Sequence[int]) -> None:
        self.model, self.token_ids = model, list(token_ids)
        self.slot = self._take(model.pools.slots.take())
        self.pages = [self._take(model.pools.pages.take()) for _ in range(-(-len(token_ids) // PAGE_TOKENS))]

    @staticmethod
    def _take(number: int | None) -> int:
        assert number is not None
        return number

    def chunk(self, start: int, stop: int) -> PromptChunk:
        """Tokens start to stop as a prompt chunk."""
        return PromptChunk(self.token_ids[start:stop], start, self.slot, self.pages, self.token_ids[:start])

    def row(self, position: int) -> DecodeRow:
        """One token as a decode row."""
        return DecodeRow(self.token_ids[position], position, self.slot, self.pages, self.token_ids[:position])

    def prefill(self, chunk: int, stop: int | None = None, start: int = 0) -> torch.Tensor:
        """Logits of positions start to stop, computed in chunks that end at multiples of `chunk` and of the page."""
        logits = []
        stop = len(self.token_ids) if stop is None else stop
        while start < stop:
            end = min(stop, start + chunk, (start // PAGE_TOKENS + 1) * PAGE_TOKENS)
            logits.append(self.model.forward(make_batch([], [self.chunk(start, end)]), every_row=True))
            start = end
        return torch.cat(logits)

    def decode(self, start: int, stop: int | None = None) -> torch.Tensor:
        """Logits of positions start to stop, one token a pass."""
        stop = len(self.token_ids) if stop is None else stop
        return torch.cat([self.model.forward(make_batch([self.row(p)], [])) for p in range(start, stop)])

    def close(self) -> None:
        """Give the pages and the slot back."""
        for page in self.pages:
            self.model.pools.pages.give(page)
        self.model.pools.slots.give(self.slot)


@contextmanager
def lowest_index_topk(margins: list[float] | None = None) -> Iterator[None]:
    """Within it, torch's topk method breaks ties as the product does: the lowest index first.

    `margins` receives, for each call, the smallest gap between the last chosen and the first rejected value, as a
    share of the largest: entries closer than rounding can be chosen differently by two programs.
    """
    original = torch.Tensor.topk

    def topk(self: torch.Tensor, k: int, dim: int = -1, **_: object) -> Any:
        values, indices = torch.sort(self, stable=True, dim=dim, descending=True)
        if margins is not None and values.shape[-1] > k:
            gap = (values[..., k - 1] - values[..., k]) / values[..., :k].abs().amax(-1)
            margins.append(gap.nan_to_num(torch.inf, torch.inf).min().item())
        return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))

    torch.Tensor.topk = topk  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.topk = original  # type: ignore[method-assign]


def decisive_prompt(oracle: Callable[[list[int]], torch.Tensor], tokens: int) -> tuple[list[int], torch.Tensor]:
    """A prompt of that length whose every selection has a margin above rounding, and the oracle's logits for it."""
    for seed in range(40):
        margins: list[float] = []
        token_ids = prompt(tokens, seed)
        with lowest_index_topk(margins), torch.no_grad():
            logits = oracle(token_ids)
        if min(margins, default=torch.inf) > SAFE_MARGIN:
            return token_ids, logits
    raise AssertionError(f"no prompt among 40 of {tokens} tokens has all selection margins above {SAFE_MARGIN}")
