"""What an evaluation runs: variants, top-k, tasks and sample counts. The only place where `quick` means something."""

from __future__ import annotations

from dataclasses import dataclass

from .items import TASKS
from .variants import ALL, BASELINE, PRODUCT, IndexVariant


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Sample counts of one evaluation.

    Accuracy: `questions` on each of `documents` documents of `records` records, for each task, seed, variant and k;
    `records` of 30 + 32 m make the text that questions share end just before a cached page does. Selection: one query
    in `shadow_every` of the first seed's documents, all variants, `shadow_ks`. Logits: `texts` windows of
    `text_bytes`, at `text_topks`.
    """

    variants: tuple[IndexVariant, ...]
    topks: tuple[int, ...]
    tasks: tuple[str, ...] = tuple(TASKS)
    seeds: tuple[int, ...] = (0,)
    documents: int = 1
    records: int = 382
    questions: int = 20
    shadow_ks: tuple[int, ...] = (8, 16, 64, 256)
    shadow_every: int = 16
    texts: int = 3
    text_bytes: int = 2048
    text_topks: tuple[int, ...] = (64, 8)

    @property
    def context(self) -> int:
        """Tokens of context that the documents and the texts need, in whole pages; one byte may take one token."""
        return -(-max(self.records * 8 + 512, self.text_bytes) // 256) * 256


QUICK = EvalPlan(
    variants=(BASELINE, PRODUCT),
    topks=(64, 8),
    tasks=("lookup", "lookup-alike", "multi-needle"),
    records=158,
    questions=5,
    shadow_ks=(8, 64),
    shadow_every=24,
    texts=1,
    text_bytes=1024,
    text_topks=(8,),
)

FULL = EvalPlan(variants=ALL, topks=(64, 8), seeds=(0, 1, 2), documents=2)
