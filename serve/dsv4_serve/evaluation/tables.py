"""Results as tables: rows of text cells, printed plainly or as Markdown."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .results import EvalResults, Outcome, SelectionSummary
from .statistics import paired_bootstrap, sign_test, unseen, wilson
from .variants import BASELINES, V4, V41

FEWEST_DOCUMENTS = 10
"""With fewer there is too little to resample, and questions are resampled instead."""
DISTANCES = (0, 512, 1024, 1536, 2048, 2560, 3072)


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column names and cells."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        lines = [f"| {' | '.join(self.columns)} |", "| --- |" + " ---: |" * (len(self.columns) - 1)]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in self.rows)])

    def text(self) -> str:
        cells = [self.columns, *self.rows]
        widths = [max(len(row[place]) for row in cells) for place in range(len(self.columns))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if place == 0 else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        )


_ORDER = {variant.name: place for place, variant in enumerate((*V4.all, *V41.all))}


def _by_k(k: int | None, variant: str) -> tuple[int, int]:
    """Sorts large k first, then formats as they are listed."""
    return -(k or 0), _ORDER.get(variant, -1)


def _k(k: int | None) -> str:
    return "own" if k is None else str(k)


def accuracy(results: EvalResults) -> Table:
    """Share of right answers by task, k and variant, with Wilson's interval."""
    groups: defaultdict[tuple[str, int | None, str], list[Outcome]] = defaultdict(list)
    for outcome in results.outcomes:
        groups[outcome.task, outcome.k, outcome.variant].append(outcome)
    rows = []
    for (task, k, variant), group in sorted(groups.items(), key=lambda pair: (pair[0][0], *_by_k(*pair[0][1:]))):
        found = wilson(sum(outcome.right for outcome in group), len(group))
        span = f"{100 * found.low:.1f} to {100 * found.high:.1f}"
        rows.append((task, _k(k), variant, str(len(group)), f"{100 * found.value:.1f}", span))
    return Table("Accuracy", ("task", "top-k", "index", "n", "right %", "95 % interval"), rows)


def by_distance(results: EvalResults) -> Table:
    """Right of asked by distance, both look-up tasks together."""
    groups: defaultdict[tuple[int | None, str], defaultdict[int, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for outcome in results.outcomes:
        if outcome.task.startswith("lookup") and outcome.distance is not None:
            bucket = max(edge for edge in DISTANCES if edge <= outcome.distance)
            groups[outcome.k, outcome.variant][bucket].append(outcome.right)
    used = [edge for edge in DISTANCES if any(edge in group for group in groups.values())]
    rows = []
    for (k, variant), group in sorted(groups.items(), key=lambda pair: _by_k(*pair[0])):
        cells = [f"{sum(group[edge])}/{len(group[edge])}" for edge in used]
        rows.append((f"{_k(k)}, {variant}", *cells))
    return Table("Look-ups by distance in bytes", ("top-k, index", *(f"{edge}+" for edge in used)), rows)


def differences(results: EvalResults) -> Table:
    """Every variant against bf16 on the same questions: paired bootstrap, an exact test, and what can be unseen."""
    cells: defaultdict[tuple[int | None, str], dict[tuple[object, ...], Outcome]] = defaultdict(dict)
    places: defaultdict[tuple[object, ...], int] = defaultdict(int)
    for outcome in results.outcomes:
        group = (outcome.k, outcome.variant, outcome.task, outcome.seed, outcome.document)
        cells[outcome.k, outcome.variant][*group[2:], places[group]] = outcome
        places[group] += 1
    rows = []
    for (k, variant), other in sorted(cells.items(), key=lambda pair: _by_k(*pair[0])):
        base = next((cells[k, name] for name in BASELINES if (k, name) in cells), None)
        shared = [key for key in other if base is not None and key in base]
        if base is None or variant in BASELINES or not shared:
            continue
        first, second = [base[key].right for key in shared], [other[key].right for key in shared]
        documents: dict[object, int] = {}
        groups = [documents.setdefault(key[:3], len(documents)) for key in shared]
        found = paired_bootstrap(first, second, groups if len(documents) >= FEWEST_DOCUMENTS else None)
        worse = sum(a and not b for a, b in zip(first, second, strict=True))
        better = sum(b and not a for a, b in zip(first, second, strict=True))
        span = f"{100 * found.low:+.1f} to {100 * found.high:+.1f}"
        if not worse + better:
            span = f"none differ: under {100 * unseen(len(shared)):.1f} % do"
        cells_of_row = (str(len(shared)), f"-{worse} +{better}", f"{100 * found.value:+.1f}", span)
        rows.append((_k(k), variant, *cells_of_row, f"{sign_test(worse, better):.2f}"))
    columns = ("top-k", "index against bf16", "pairs", "lost, won", "points", "95 % interval", "exact p")
    return Table("Differences to bf16, all tasks", columns, rows)


def selection(results: EvalResults) -> Table:
    """Recall and margin loss by variant and k, all layers and contexts, weighted by queries."""
    return _selection(results.selections, "Top-k recall and score-margin loss", by_layer=False)


def selection_by_layer(results: EvalResults, k: int = 64) -> Table:
    """The same at one k by layer and context (entries seen)."""
    chosen = [entry for entry in results.selections if entry.k == k]
    return _selection(chosen, f"The same at top-{k} by layer and context", by_layer=True)


def _selection(entries: Sequence[SelectionSummary], title: str, by_layer: bool) -> Table:
    groups: defaultdict[tuple[str, ...], list[SelectionSummary]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: (entry.k, entry.layer, entry.low)):
        where = (str(entry.layer), f"{entry.low}+") if by_layer else (str(entry.k),)
        groups[entry.variant, *where].append(entry)
    # Formats that pick the same entries everywhere share a row: that they do is a result.
    names: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for (name, *place), group in groups.items():
        names[*place, *_recall_cells(group)].append(name)
    rows = [(", ".join(shared), *cells) for cells, shared in names.items()]
    where = ("layer", "entries") if by_layer else ("top-k",)
    columns = ("index", *where, "queries", "recall %", "worst 1 %", "margin loss")
    return Table(title, columns, rows)


def _recall_cells(group: Sequence[SelectionSummary]) -> tuple[str, ...]:
    total = sum(entry.queries for entry in group)
    recall = sum(entry.recall * entry.queries for entry in group) / total
    spread = 1.96 * math.sqrt(sum((entry.error * entry.queries) ** 2 for entry in group)) / total
    loss = sum(entry.margin_loss * entry.queries for entry in group) / total
    worst = min(entry.worst for entry in group)
    return str(total), f"{100 * recall:.1f} ± {100 * spread:.1f}", f"{100 * worst:.0f}", f"{loss:.5f}"


def logits(results: EvalResults) -> Table:
    """Perplexity of held-out prose and divergence from exact scores."""
    rows = [
        (
            entry.variant,
            str(entry.k),
            str(entry.tokens),
            f"{entry.perplexity:.4f}",
            f"{1e3 * entry.nats_more:+.2f} ({1e3 * entry.low:+.2f} to {1e3 * entry.high:+.2f})",
            f"{1e3 * entry.kl:.3f}",
            f"{entry.largest:.2f}",
            f"{100 * entry.agreement:.2f}",
        )
        for entry in results.logits
    ]
    columns = ("index", "top-k", "tokens", "perplexity", "more mnat (95 %)", "KL mnat", "largest logit", "same top-1 %")
    return Table("Held-out prose", columns, rows)


def every_table(results: EvalResults) -> list[Table]:
    """The tables that have rows."""
    found = [accuracy(results), differences(results), by_distance(results)]
    found += [selection(results), selection_by_layer(results), logits(results)]
    return [table for table in found if table.rows]
