"""The indexer of a ratio-4 layer: it scores every compressed entry with 64 small heads and picks the top ones.

Index keys live in the product's paged pool and pass through the product's operations (`dsv4_kernels.ops`), so what
this engine shows of layouts, sizes and selection is true of the product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from dsv4_kernels import ops
from dsv4_kernels.pool import IndexPool

from .batch import ForwardBatch, Segment
from .compressor import Closed, Compressor
from .config import PAGE_TOKENS, ModelConfig
from .index_scope import Scope
from .linear import Projection
from .rope import RopeTable

RATIO = 4
ENTRIES_PER_PAGE = PAGE_TOKENS // RATIO


class IndexObserver(Protocol):
    """Sees what an indexer writes and scores, and may do the same with pools of its own (see `evaluation.shadow`)."""

    def stored(self, write: Callable[[IndexPool], None]) -> None:
        """Keys were stored; `write` stores the same keys at the same slots of another pool of as many pages."""

    def scored(
        self, score: Callable[[IndexPool, torch.Tensor], torch.Tensor], rows: torch.Tensor, seen: torch.Tensor
    ) -> None:
        """Batch rows `rows` int64 [n], which see `seen` int32 [n] entries, were scored.

        `score(pool, picked)` gives the scores of `rows[picked]` against a pool: float32 [len(picked), max(seen)].
        """


class Indexer:
    """Weights, compressor state and key pool of one layer's indexer."""

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        prefix: str,
        config: ModelConfig,
        rope: RopeTable,
        pool: IndexPool,
        slots: int,
        ablated: bool = False,
        picks: int | None = None,
        grouped: bool = False,
    ) -> None:
        self._grouped = grouped
        self._heads, self._dim, self._top_k = config.index_n_heads, config.index_head_dim, config.index_topk
        self._rms, self._rope, self.pool = config.rms_norm_eps, rope, pool
        self._wq_b = Projection(weights[prefix + "wq_b.weight"])
        self._key_norm = weights[prefix + "compressor.norm.weight"]
        self._weight_scale = self._dim**-0.5 * self._heads**-0.5
        self.ablated = ablated
        self._picks = picks or self._top_k
        self.observer: IndexObserver | None = None
        self.compressor = Compressor(RATIO, self._dim, weights[prefix + "compressor.ape"], slots)
        self.input_projections = [
            weights[prefix + "compressor.wkv.weight"],
            weights[prefix + "compressor.wgate.weight"],
            weights[prefix + "weights_proj.weight"],
        ]

    def select(self, projected: torch.Tensor, latent: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """Store the keys that the batch completed, then pick each row's entries: int64 [T, index_topk], -1 padded.

        projected [T, n] by `input_projections`, latent [T, q_lora_rank]. Rows that see at most index_topk entries take
        them all, in order, unscored; the others hold the chosen entries by falling score. With `picks` fewer slots are
        filled.
        """
        keys, head_weights = projected[:, : self.compressor.width], projected[:, self.compressor.width :]
        self._write_keys(keys, batch)
        lengths = (batch.positions + 1) // RATIO
        every = torch.arange(self._top_k)
        chosen = every.masked_fill(every >= lengths.clamp(max=self._picks)[:, None], -1)
        scored = lengths > self._picks
        if bool(scored.any()) and not self.ablated:
            self._score(chosen, scored, lengths, latent, head_weights, batch)
        return chosen

    def _write_keys(self, keys: torch.Tensor, batch: ForwardBatch) -> None:
        if batch.decode is not None:
            closed = self.compressor.decode(keys[: batch.decode_rows], batch.decode)
            if closed.entries.numel():
                rows = batch.decode.closing[RATIO].rows
                self._store(closed, batch.page_table[rows, closed.entries // ENTRIES_PER_PAGE])
        for segment in batch.segments:
            closed = self.compressor.prefill(keys[segment.rows], segment)
            if closed.entries.numel():
                self._store(closed, segment.pages[closed.entries // ENTRIES_PER_PAGE])

    def _store(self, closed: Closed, pages: torch.Tensor) -> None:
        def write(pool: IndexPool) -> None:
            ops.write_index_keys(
                pool,
                closed.pooled,
                self._key_norm,
                self._rms,
                self._rope.cos,
                self._rope.sin,
                closed.entries * RATIO,
                pages * ENTRIES_PER_PAGE + closed.entries % ENTRIES_PER_PAGE,
            )

        write(self.pool)
        if self.observer is not None:
            self.observer.stored(write)

    def _score(
        self,
        chosen: torch.Tensor,
        scored: torch.Tensor,
        lengths: torch.Tensor,
        latent: torch.Tensor,
        head_weights: torch.Tensor,
        batch: ForwardBatch,
    ) -> None:
        """Replace the rows of `chosen` where `scored` holds by the top entries."""
        q = self._wq_b(latent).view(-1, self._heads, self._dim)
        rows = scored[: batch.decode_rows].nonzero().view(-1)
        if rows.numel():
            self._top(chosen, rows, q, head_weights, lengths, batch, _decode_scope(batch, rows, self._grouped))
        for segment in batch.segments:
            rows = scored[segment.rows].nonzero().view(-1) + segment.row
            if rows.numel():
                self._top(chosen, rows, q, head_weights, lengths, batch, _chunk_scope(segment, rows))

    def _top(
        self,
        chosen: torch.Tensor,
        rows: torch.Tensor,
        q: torch.Tensor,
        head_weights: torch.Tensor,
        lengths: torch.Tensor,
        batch: ForwardBatch,
        scope: Scope,
    ) -> None:
        seen = lengths[rows].to(torch.int32)
        longest = int(seen.max())

        def score(pool: IndexPool, picked: torch.Tensor) -> torch.Tensor:
            wanted = rows[picked]
            cos, sin, positions = self._rope.cos, self._rope.sin, batch.positions[wanted]
            query = ops.quantize_query(q[wanted], cos, sin, positions, spec=pool.spec, phase=scope.phase)
            return scope.logits(query, pool, head_weights[wanted], seen[picked], picked, self._weight_scale, longest)

        logits = score(self.pool, torch.arange(len(rows)))
        chosen[rows, : self._picks] = ops.topk(logits, seen, self._picks, phase=scope.phase).long()
        if self.observer is not None:
            self.observer.scored(score, rows, seen)


def _decode_scope(batch: ForwardBatch, rows: torch.Tensor, grouped: bool) -> Scope:
    tables = batch.page_table[rows].to(torch.int32)
    if not batch.drafted:
        return Scope("decode", tables, None, grouped)
    assert batch.decode is not None
    _, sequences, counts = torch.unique_consecutive(batch.decode.slots[rows], return_inverse=True, return_counts=True)
    return Scope("verify", tables[counts.cumsum(0) - counts], sequences)


def _chunk_scope(segment: Segment, rows: torch.Tensor) -> Scope:
    return Scope("prefill", segment.pages.to(torch.int32).unsqueeze(0), torch.zeros_like(rows))
