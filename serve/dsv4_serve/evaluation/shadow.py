"""How well an index format picks: its top-k beside that of exact scores, on the same queries and keys.

The model runs once, on exact scores. Every key that it stores is stored in a pool of each variant too, and sampled
queries are scored against all pools, through the product's own operations. So a difference is the format's alone, not
that of a context that drifted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from dsv4_kernels import ops
from dsv4_kernels.formats import Convention, dequantize_columns, quantize_columns
from dsv4_kernels.pool import IndexPool, IndexSpec
from dsv4_serve.engines.embedded.causal_model import CausalModel
from dsv4_serve.engines.embedded.indexer import Indexer
from dsv4_serve.engines.embedded.model import Model
from dsv4_serve.engines.embedded.v41.indexer import V41Indexer
from dsv4_serve.engines.embedded.v41.model import V41Model

Score = Callable[[IndexPool, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Selection:
    """One query's picks by one variant, against exact scores.

    `recall` is the share of the exact top-k that was picked. `margin_loss` is how much lower the picks' mean exact
    score is than the exact top-k's, in standard deviations of the exact scores of all `seen` entries; 0 at best.
    """

    variant: str
    layer: int
    seen: int
    k: int
    recall: float
    margin_loss: float


@dataclass(frozen=True, slots=True)
class Shadow:
    """A way to store and score the keys; `read` differs from `write` to show what a format mix-up does.

    `shift` moves the scale bytes of every page by that many places after writing: a wrong scale order. `keys_by`
    (float32 layout only) rounds the keys, not the queries, by that convention from their bf16 values: writers that
    rotate in bf16 meet ties between two codes, which float32 hardly ever does.
    """

    name: str
    write: IndexSpec
    read: IndexSpec
    shift: int = 0
    keys_by: Convention | None = None

    @classmethod
    def sound(cls, name: str, spec: IndexSpec) -> Shadow:
        return cls(name, spec, spec)


class ShadowIndex:
    """Observes one layer's indexer. `selections` grows by one for each sampled query, shadow and k."""

    def __init__(self, layer: int, pages: int, shadows: Sequence[Shadow], ks: Sequence[int], every: int) -> None:
        self._layer, self._ks, self._every, self._offset = layer, ks, every, 0
        self._shadows = [(shadow, IndexPool.allocate(shadow.write, pages)) for shadow in shadows]
        self.exact: IndexPool | None = None
        self.selections: list[Selection] = []

    def stored(self, write: Callable[[IndexPool], None]) -> None:
        for _, pool in self._shadows:
            write(pool)

    def scored(self, score: Score, rows: torch.Tensor, seen: torch.Tensor) -> None:
        """Every `every`-th query that is scored, counted over all calls."""
        assert self.exact is not None
        picked = torch.arange(len(rows))[(-self._offset) % self._every :: self._every]
        self._offset += len(rows)
        if not len(picked):
            return
        seen = seen[picked]
        exact = score(self.exact, picked)
        best = ops.topk(exact, seen, max(self._ks)).long()
        for shadow, pool in self._shadows:
            ranked = ops.topk(score(_as_read(shadow, pool), picked), seen, max(self._ks)).long()
            for row, count in enumerate(seen.tolist()):
                self._compare(shadow.name, exact[row, :count], best[row], ranked[row])

    def _compare(self, name: str, exact: torch.Tensor, best: torch.Tensor, ranked: torch.Tensor) -> None:
        for k in self._ks:
            if len(exact) <= k:
                continue
            recall = torch.isin(ranked[:k], best[:k]).float().mean()
            loss = (exact[best[:k]].mean() - exact[ranked[:k]].mean()) / exact.std()
            self.selections.append(Selection(name, self._layer, len(exact), k, float(recall), float(loss)))


def _as_read(shadow: Shadow, pool: IndexPool) -> IndexPool:
    """The stored bytes as the reader takes them."""
    tensors = dict(pool.tensors)
    if shadow.shift:
        name = pool.spec.layout.scale_spec.name
        flat = tensors[name].reshape(pool.pages, -1)
        tensors[name] = flat.roll(shadow.shift, 1).view(tensors[name].shape)
    if shadow.keys_by is not None:
        tensors = {name: _rounded(keys, shadow.keys_by) for name, keys in tensors.items()}
    return IndexPool(shadow.read, tensors)


def _rounded(keys: torch.Tensor, rule: Convention) -> torch.Tensor:
    """Keys [pages, slots, 128] as FP4 by `rule` gives them back, from bf16."""
    columns = keys.bfloat16().float().view(-1, keys.shape[-1]).t().contiguous()
    return dequantize_columns(*quantize_columns(columns, rule)).t().contiguous().view(keys.shape)


def indexers(model: CausalModel) -> Iterator[tuple[int, Indexer | V41Indexer, IndexPool]]:
    """(layer, indexer, the pool of its keys) of every layer that has an indexer."""
    assert isinstance(model, Model | V41Model)
    found: list[Indexer | V41Indexer | None] = [attention.indexer for attention in model.attentions]
    for layer, indexer in enumerate(found):
        if indexer is not None:
            yield layer, indexer, indexer.source.index if isinstance(indexer, V41Indexer) else indexer.pool


def observe(model: CausalModel, shadows: Sequence[Shadow], ks: Sequence[int], every: int) -> list[ShadowIndex]:
    """Attach an observer to every indexer of a model that runs on exact scores; each sees queries past max(ks) keys.

    V4.1's indexers share keys, of which each observer keeps copies; a choice inside candidate blocks is observed as one
    among all entries.
    """
    observers = []
    for layer, indexer, exact in indexers(model):
        observer = ShadowIndex(layer, exact.pages, shadows, ks, every)
        observer.exact, indexer.observer = exact, observer
        if isinstance(indexer, V41Indexer):
            indexer.source.observers.append(observer)
        observers.append(observer)
    return observers
