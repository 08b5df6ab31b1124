"""The three measurements, each on the embedded engine: answers, selection, logits."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import torch

from dsv4_kernels.formats import CONVENTIONS
from dsv4_kernels.pool import IndexSpec
from dsv4_serve.engines.embedded.build import build
from dsv4_serve.engines.embedded.tokenizer import BOS_ID, load_tokenizer

from .answering import Answerer, EngineAnswerer, Progress, engine_options
from .forward import compare, every_logit
from .heldout import heldout_text
from .items import Item, document_text, documents, make_items
from .levels import served_as
from .plan import EvalPlan
from .results import LogitSummary, Outcome, SelectionSummary
from .shadow import Selection, Shadow, observe
from .statistics import paired_bootstrap
from .variants import ALL, V41, IndexVariant, VariantSet

SKIPPED_TOKENS = 64
"""Tokens at the start of a text that do not count: too little context to predict from."""
EDGES = (0, 256, 512, 768, 1536, 1 << 20)
"""Buckets of context, in entries seen."""


async def ask(answerer: Answerer, plan: EvalPlan, variant: str, k: int | None) -> list[Outcome]:
    """Outcomes of every task and seed of the plan."""
    asked: list[tuple[int, Item]] = []
    for seed in plan.seeds:
        for task in plan.tasks:
            found = make_items(task, seed, plan.documents, plan.records, plan.questions)
            asked += [(seed, item) for item in found]
    # Tasks over one document stand together, so that a small cache holds it until all have been asked.
    asked.sort(key=lambda pair: (pair[0], pair[1].task == "lookup-alike", pair[1].document))
    replies = await answerer.answers([item for _, item in asked])
    return [
        Outcome(variant, k, item.task, seed, item.document, item.distance, item.is_right(reply))
        for (seed, item), reply in zip(asked, replies, strict=True)
    ]


def measure_answers(model: Path, plan: EvalPlan, progress: Progress) -> list[Outcome]:
    """Accuracy of every variant and k, each in an engine of its own."""
    found: list[Outcome] = []
    for k in plan.topks:
        for variant in plan.variants:
            progress(f"answers: {variant.name}, top-{k}: asking")
            outcomes = asyncio.run(_engine_outcomes(model, plan, variant, k))
            right = sum(outcome.right for outcome in outcomes)
            progress(f"answers: {variant.name}, top-{k}: {right} of {len(outcomes)} right")
            found += outcomes
    return found


async def _engine_outcomes(model: Path, plan: EvalPlan, variant: IndexVariant, k: int) -> list[Outcome]:
    with served_as(model, variant) as directory:
        async with EngineAnswerer(engine_options(directory, variant, k, plan.context)) as answerer:
            return await ask(answerer, plan, variant.name, k)


_V4_FAULTS = (
    Shadow("fault: rotation on one side only", ALL[-1].spec, ALL[-2].spec),
    Shadow(
        "fault: keys by cuda_c4, queries by aiter",
        IndexSpec.named("split64", "cuda_c4"),
        IndexSpec.named("split64", "aiter"),
    ),
    Shadow("fault: scales one place off", ALL[3].spec, ALL[3].spec, shift=1),
)
"""What mix-ups do to recall; the product refuses these pairs, here the bytes are misread on purpose."""
_V41_FAULTS = (Shadow("fault: scales one place off", V41.product.spec, V41.product.spec, shift=1),)

_ROTATED = IndexSpec.named("float32")
KEYS_ALONE = tuple(
    Shadow(f"keys alone, from bf16, {name}", _ROTATED, _ROTATED, keys_by=CONVENTIONS[name])
    for name in ("aiter", "cuda_c4", "rne_v41")
)
"""Conventions differ at ties and at group maxima near a power of two; these show them where ties are common."""


def measure_selection(model: Path, plan: EvalPlan, formats: VariantSet, progress: Progress) -> list[SelectionSummary]:
    """Recall and margin loss of every format and of faults, by layer and context, in one pass a document."""
    built = build(engine_options(model, formats.exact, None, plan.context))
    tokenizer = load_tokenizer(model)
    shadows = [Shadow.sound(variant.name, variant.spec) for variant in formats.all if variant.two_level]
    shadows += _V41_FAULTS if formats is V41 else (*KEYS_ALONE, *_V4_FAULTS)
    with torch.inference_mode():
        observers = observe(built.model, shadows, plan.shadow_ks, plan.shadow_every)
        for number, document in enumerate(documents(plan.seeds[0], plan.documents, plan.records)):
            progress(f"selection: document {number + 1} of {plan.documents}")
            every_logit(built.model, [BOS_ID, *tokenizer.encode_text(document_text(document))])
    return summarise(selection for observer in observers for selection in observer.selections)


def summarise(selections: Iterable[Selection]) -> list[SelectionSummary]:
    """By variant, layer, k and context."""
    groups: defaultdict[tuple[str, int, int, int, int], list[Selection]] = defaultdict(list)
    for selection in selections:
        low, high = next((a, b) for a, b in pairwise(EDGES) if a < selection.seen <= b)
        groups[selection.variant, selection.layer, selection.k, low, high].append(selection)
    found = []
    for key, group in groups.items():
        recall = torch.tensor([selection.recall for selection in group])
        loss = sum(selection.margin_loss for selection in group) / len(group)
        worst = recall.sort().values[max(0, -(-len(group) // 100) - 1)]
        error = float(recall.std(correction=0)) / len(group) ** 0.5
        found.append(SelectionSummary(*key, len(group), float(recall.mean()), error, float(worst), loss))
    return found


def measure_logits(model: Path, plan: EvalPlan, exactly: IndexVariant, progress: Progress) -> list[LogitSummary]:
    """Perplexity of held-out prose and divergence from exact scores (`exactly`), for every variant and k."""
    tokenizer = load_tokenizer(model)
    text = heldout_text(plan.texts * plan.text_bytes)
    cuts = [text[start : start + plan.text_bytes] for start in range(0, len(text), plan.text_bytes)]
    ids = [[BOS_ID, *tokenizer.encode_text(cut.decode(errors="ignore"))] for cut in cuts]
    found = []
    for k in plan.text_topks:
        progress(f"logits: exact scores, top-{k}")
        exact = _logits(model, exactly, k, plan, ids)
        base = [compare(logits, logits, text, SKIPPED_TOKENS).nats for logits, text in zip(exact, ids, strict=True)]
        for variant in (exactly, *plan.variants):
            other = exact if variant == exactly else _logits(model, variant, k, plan, ids)
            found.append(_summary(variant.name, k, exact, other, base, ids))
            progress(f"logits: {variant.name}, top-{k}: perplexity {found[-1].perplexity:.3f} per token")
    return found


def _logits(
    model: Path, variant: IndexVariant, k: int, plan: EvalPlan, ids: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    with served_as(model, variant) as directory:
        built = build(engine_options(directory, variant, k, plan.context))
        return [every_logit(built.model, text) for text in ids]


def _summary(
    name: str,
    k: int,
    exact: Sequence[torch.Tensor],
    other: Sequence[torch.Tensor],
    base: Sequence[torch.Tensor],
    ids: Sequence[Sequence[int]],
) -> LogitSummary:
    parts = [compare(a, b, text, SKIPPED_TOKENS) for a, b, text in zip(exact, other, ids, strict=True)]
    nats, counts = torch.cat([part.nats for part in parts]), [len(part.nats) for part in parts]
    groups = [number for number, count in enumerate(counts) for _ in range(count)]
    more = paired_bootstrap(torch.cat(list(base)).tolist(), nats.tolist(), groups)
    total = sum(counts)
    return LogitSummary(
        variant=name,
        k=k,
        tokens=total,
        perplexity=float(nats.double().mean().exp()),
        nats_more=more.value,
        low=more.low,
        high=more.high,
        kl=sum(part.kl * count for part, count in zip(parts, counts, strict=True)) / total,
        largest=max(part.largest for part in parts),
        agreement=sum(part.agreement * count for part, count in zip(parts, counts, strict=True)) / total,
    )
