"""Which entries a query attends to, and what the index is taught from.

The index returns integers, so cross entropy never reaches it. `IndexProbe` carries, for a sample of queries, the
index scores (with gradient) and the attention mass on the same entries (without); losses.py pulls one to the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

SCORE_CHUNK = 512
"""Queries scored at a time where no gradient is kept: bounds the [queries, heads, entries] temporary."""


@dataclass(frozen=True)
class IndexMode:
    """How indexed layers choose entries. `topk` None attends to all; `transform` maps index queries and keys (e.g.
    quantise and dequantise) before scoring; `random` and `none` are the ablations. V4.1 alone: `two_level` False
    scores all entries where the model restricts a layer to candidate blocks, `stored_kv` rounds the KV rows as serving
    stores them, and `window` attends to fewer tokens than the model's window, so that entries are needed sooner."""

    topk: int | None = None
    transform: Callable[[Tensor], Tensor] | None = None
    selection: Literal["scores", "random", "none"] = "scores"
    two_level: bool = True
    stored_kv: bool = False
    window: int | None = None


@dataclass(frozen=True)
class IndexProbe:
    """Sampled queries of one index: scores and mass float32 [batch, probes, entries], visible bool alike."""

    scores: Tensor
    mass: Tensor
    visible: Tensor


@dataclass(frozen=True)
class IndexInputs:
    """Index queries [batch, length, heads, dim], keys [batch, entries, dim], head weights [batch, length, heads]."""

    queries: Tensor
    keys: Tensor
    weights: Tensor

    def at(self, rows: Tensor | slice) -> "IndexInputs":
        """The same keys for some queries: int64 [batch, n], or a slice of the length."""
        if isinstance(rows, slice):
            return IndexInputs(self.queries[:, rows], self.keys, self.weights[:, rows])
        return IndexInputs(take(self.queries, rows), self.keys, take(self.weights, rows))

    def transformed(self, mode: IndexMode) -> "IndexInputs":
        """After the mode's number format."""
        if mode.transform is None:
            return self
        return IndexInputs(mode.transform(self.queries), mode.transform(self.keys), self.weights)

    def scores(self) -> Tensor:
        """float32 [batch, queries, entries]: sum over heads of weight * relu(query . key)."""
        batch, length, heads, _ = self.queries.shape
        dots = torch.matmul(self.queries.flatten(1, 2), self.keys.to(self.queries.dtype).transpose(1, 2))
        dots = torch.unflatten(F.relu(dots), 1, (length, heads))
        flat = torch.matmul(self.weights.to(dots.dtype).flatten(0, 1)[:, None], dots.flatten(0, 1))
        return flat.float().view(batch, length, -1)


def take(x: Tensor, rows: Tensor) -> Tensor:
    """x [batch, length, ...] at rows [batch, n] -> [batch, n, ...]."""
    return x[torch.arange(len(x), device=x.device)[:, None], rows]


def visible_entries(length: int, entries: int, ratio: int, device: torch.device) -> Tensor:
    """bool [length, entries]: an entry is visible once the query has seen its whole window."""
    ready = (torch.arange(length, device=device) + 1) // ratio
    return torch.arange(entries, device=device)[None] < ready[:, None]


def chunks_of_scores(inputs: IndexInputs, visible: Tensor, mode: IndexMode) -> Iterator[Tensor]:
    """Scores of SCORE_CHUNK queries at a time, -inf where an entry is not visible (bool [1, length, entries])."""
    inputs = inputs.transformed(mode)
    for start in range(0, inputs.queries.shape[1], SCORE_CHUNK):
        part = slice(start, start + SCORE_CHUNK)
        if mode.selection == "random":
            shape = (len(inputs.keys), inputs.queries[:, part].shape[1], inputs.keys.shape[1])
            scores = torch.rand(shape, device=inputs.keys.device)
        else:
            scores = inputs.at(part).scores()
        yield scores.masked_fill(~visible[:, part], float("-inf"))


def best(scores: Tensor, count: int, exact_ties: bool = True) -> Tensor:
    """bool like `scores`: the `count` highest along the last axis that are not -inf. On equal scores the lowest index
    wins, or, without `exact_ties` (faster), any."""
    count = min(count, scores.shape[-1])
    if exact_ties:
        picked = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    else:
        picked = scores.topk(count, dim=-1, sorted=False).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, picked, True) & (scores > float("-inf"))
