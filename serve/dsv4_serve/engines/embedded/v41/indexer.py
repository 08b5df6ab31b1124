"""The indexer of an index source: it scores compressed entries with 32 small heads and chooses the best ones.

Selection has two levels. The candidate source scores every entry that a row sees, and publishes the blocks of 8 with
the best ones. Indexers behind it choose inside these blocks, by their own queries over the same keys.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dsv4_kernels import ops
from dsv4_kernels.counters import Phase
from dsv4_kernels.pool import IndexPool, IndexSpec, Query

from ..indexer import IndexObserver
from ..linear import Projection
from ..rope import RopeTable
from .config import CANDIDATE_BLOCK, V41Config
from .forward_pass import ForwardPass
from .kv_source import KVSource
from .scored_rows import ScoredRows

Quantized = Callable[[IndexSpec, torch.Tensor], tuple[Query, torch.Tensor]]
"""Queries and head weights of some rows, in a pool's format."""


class V41Indexer:
    """Weights of one index source under `prefix`, over the keys of `source`.

    `input_projection` [heads, hidden] gives the head weights. `picks`: fewer entries than the model's index_topk. One
    that is `ablated` takes the first entries, as those behind a candidate source must that is.
    `grouped`: rows are scored as row groups in every phase.
    """

    def __init__(
        self,
        weights: dict[str, torch.Tensor],
        prefix: str,
        config: V41Config,
        layer: int,
        rope: RopeTable,
        source: KVSource,
        picks: int | None = None,
        grouped: bool = False,
    ) -> None:
        self._grouped = grouped
        self.ablated = False
        self.observer: IndexObserver | None = None
        self._heads, self._dim, self._top_k = config.index_n_heads, config.index_head_dim, config.index_topk
        self._rope, self.source, self._picks = rope, source, picks or self._top_k
        self._publishes = layer == config.candidate_source_layer_id and bool(config.candidate_consumers)
        self._consumes = layer in config.candidate_consumers
        self._blocks = config.candidate_topk_blocks
        self._wq_b = Projection(weights[prefix + "wq_b.weight"])
        self._weight_scale = self._dim**-0.5 * self._heads**-0.5
        self.input_projection = weights[prefix + "weights_proj.weight"]

    def choose(self, latent: torch.Tensor, head_weights: torch.Tensor, of: ForwardPass) -> torch.Tensor:
        """Each row's entries by ascending position: int64 [T, index_topk], -1 padded.

        latent [T, q_lora_rank], head_weights [T, heads]. Rows that see at most index_topk entries take them all,
        unscored. Publishes candidate blocks if this is their source.
        """
        lengths = (of.batch.positions + 1) // self.source.ratio
        every = torch.arange(self._top_k)
        chosen = every.masked_fill(every >= lengths.clamp(max=self._picks)[:, None], -1)
        groups = of.scored(self.source.ratio, self._picks)
        if not groups or self.ablated:
            return chosen
        queries = self._wq_b(latent).bfloat16().view(-1, self._heads, self._dim)
        for number, group in enumerate(groups):

            def quantized(
                spec: IndexSpec, rows: torch.Tensor, phase: Phase = group.phase
            ) -> tuple[Query, torch.Tensor]:
                return ops.quantize_query_with_weights(
                    queries[rows],
                    self._rope.cos,
                    self._rope.sin,
                    of.batch.positions[rows],
                    head_weights[rows],
                    weight_scale=self._weight_scale,
                    spec=spec,
                    phase=phase,
                )

            query, weights = quantized(self.source.index.spec, group.rows)
            if self._consumes:
                best = self._inside(query, weights, group, of.candidates[number])
            else:
                best = self._among_all(query, weights, group, of)
            chosen[group.rows, : self._picks] = in_order(best).long()
            if self.observer is not None:
                self._observe(self.observer, group, quantized)
        return chosen

    def _observe(self, observer: IndexObserver, group: ScoredRows, quantized: Quantized) -> None:
        """Among all entries, whatever the rows may choose from."""

        def score(pool: IndexPool, picked: torch.Tensor) -> torch.Tensor:
            return self._scores(pool, *quantized(pool.spec, group.rows[picked]), group, picked)

        observer.scored(score, group.rows, group.seen)

    def _among_all(self, query: Query, weights: torch.Tensor, group: ScoredRows, of: ForwardPass) -> torch.Tensor:
        logits = self._scores(self.source.index, query, weights, group)
        if self._publishes:
            of.candidates.append(ops.candidate_blocks(logits, group.seen, self._blocks, phase=group.phase))
        return ops.topk(logits, group.seen, self._picks, phase=group.phase)

    def _inside(self, query: Query, weights: torch.Tensor, group: ScoredRows, blocks: torch.Tensor) -> torch.Tensor:
        if self.source.index.spec.layout.page_slots != CANDIDATE_BLOCK:
            logits = self._scores(self.source.index, query, weights, group)
            logits.masked_fill_(~_covered(blocks, logits.shape[1]), -torch.inf)
            return ops.topk(logits, group.seen, self._picks, phase=group.phase)
        per_page = self.source.entries_per_page
        table = ops.candidate_table(blocks, group.seen, group.row_tables(), page_slots=per_page)
        logits = ops.rowgroup_logits(
            query,
            self.source.index,
            weights,
            table.pages,
            table.lengths,
            torch.arange(len(blocks) + 1, dtype=torch.int32),
            max_query_len=1,
            weight_scale=1.0,
            max_seq_len=blocks.shape[1] * CANDIDATE_BLOCK,
            phase=group.phase,
        )
        return ops.candidate_positions(ops.topk(logits, table.lengths, self._picks, phase=group.phase), table)

    def _scores(
        self,
        pool: IndexPool,
        query: Query,
        weights: torch.Tensor,
        group: ScoredRows,
        picked: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """float32 [n, longest] of every entry that the rows see, or those of them at `picked`."""
        pages = self.source.entries_per_page // pool.spec.layout.page_slots
        picked = torch.arange(len(group.rows)) if picked is None else picked
        scope = group.scope(pages, self._grouped)
        return scope.logits(query, pool, weights, group.seen[picked], picked, 1.0, group.longest)


def in_order(chosen: torch.Tensor) -> torch.Tensor:
    """int32 [n, k] ascending, -1 last."""
    last = torch.iinfo(torch.int32).max
    ascending = chosen.masked_fill(chosen < 0, last).sort(-1).values
    return ascending.masked_fill_(ascending == last, -1)


def _covered(blocks: torch.Tensor, columns: int) -> torch.Tensor:
    """bool [n, columns]: the columns that lie in a row's blocks int32 [n, C]."""
    count = -(-columns // CANDIDATE_BLOCK)
    # Padding goes to a block behind the last.
    at = blocks.long().masked_fill(blocks < 0, count)
    kept = torch.zeros(len(blocks), count + 1, dtype=torch.bool).scatter_(1, at, True)
    return kept[:, :count].repeat_interleave(CANDIDATE_BLOCK, 1)[:, :columns]
