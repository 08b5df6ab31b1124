"""Plots as SVG, drawn by hand: recall by index format, accuracy by top-k, recall by context."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from html import escape

from .results import EvalResults, SelectionSummary
from .statistics import Interval, wilson

WIDTH, HEIGHT, LEFT, TOP, LEGEND = 420, 220, 56, 36, 190
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#0a7f8c", "#bf3989", "#57606a", "#bc4c00", "#116329")
STYLE = (
    "text{font:12px sans-serif;fill:#24292f}.title{font-weight:bold}.end{text-anchor:end}.mid{text-anchor:middle}"
    ".axis{stroke:#8c959f;fill:none}polyline{fill:none;stroke-width:1.6}"
)
Points = Sequence[tuple[float, Interval]]


def line_chart(title: str, x_label: str, x_names: Sequence[str], series: Mapping[str, Points], low: float) -> str:
    """An SVG with one line a series over evenly spaced x (index into `x_names`); y from `low` to 1, whiskers where an
    interval is not a point."""

    def x(place: float) -> float:
        return LEFT + 20 + place * (WIDTH - 40) / max(1, len(x_names) - 1)

    def y(value: float) -> float:
        return TOP + HEIGHT * (1 - (max(value, low) - low) / (1 - low))

    parts = [f'<text x="{LEFT}" y="20" class="title">{escape(title)}</text>']
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{TOP + HEIGHT}H{LEFT + WIDTH}"/>')
    for share in (low + (1 - low) * step / 4 for step in range(5)):
        parts.append(f'<text class="end" x="{LEFT - 6}" y="{y(share) + 4:.1f}">{100 * share:.4g} %</text>')
    for mark, name in enumerate(x_names):
        parts.append(f'<text class="mid" x="{x(mark):.1f}" y="{TOP + HEIGHT + 16}">{escape(name)}</text>')
    middle = LEFT + WIDTH / 2
    parts.append(f'<text class="mid" x="{middle:.1f}" y="{TOP + HEIGHT + 34}">{escape(x_label)}</text>')
    for number, (name, points) in enumerate(series.items()):
        colour, shift = COLOURS[number % len(COLOURS)], (number - (len(series) - 1) / 2) * 3
        path = " ".join(f"{x(place) + shift:.1f},{y(value.value):.1f}" for place, value in points)
        parts.append(f'<polyline points="{path}" stroke="{colour}"/>')
        for place, value in points:
            whisker = f"M{x(place) + shift:.1f} {y(value.low):.1f}V{y(value.high):.1f}"
            parts.append(f'<path d="{whisker}" stroke="{colour}"/>')
            parts.append(f'<circle cx="{x(place) + shift:.1f}" cy="{y(value.value):.1f}" r="2.4" fill="{colour}"/>')
        at = TOP + 10 + 17 * number
        parts.append(f'<rect x="{LEFT + WIDTH + 14}" y="{at - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + WIDTH + 30}" y="{at}">{escape(name)}</text>')
    size = (LEFT + WIDTH + LEGEND + 30, max(TOP + HEIGHT + 48, TOP + 20 + 17 * len(series)))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}">'
    return "\n".join(
        [head, f"<style>{STYLE}</style>", '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n"]
    )


def recall_by_k(results: EvalResults) -> str:
    """Recall of each sound variant by k, all layers and contexts."""
    return _recall(results, "Recall of the exact top-k", "top-k", lambda entry: entry.k, None)


def recall_by_context(results: EvalResults, k: int) -> str:
    """Recall of each sound variant at one k by entries seen."""
    return _recall(results, f"Recall of the exact top-{k} by context", "entries seen, from", lambda entry: entry.low, k)


def _recall(
    results: EvalResults, title: str, label: str, place: Callable[[SelectionSummary], int], k: int | None
) -> str:
    sums: defaultdict[tuple[str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for entry in results.selections:
        if entry.variant.startswith(("fault", "keys alone")) or (k is not None and entry.k != k):
            continue
        cell = sums[entry.variant, place(entry)]
        cell[0] += entry.recall * entry.queries
        cell[1] += entry.queries
    marks = sorted({mark for _, mark in sums})
    series: defaultdict[str, list[tuple[float, Interval]]] = defaultdict(list)
    for (variant, mark), (total, count) in sorted(sums.items()):
        value = total / count
        series[variant].append((marks.index(mark), Interval(value, value, value)))
    low = min(total / count for total, count in sums.values())
    return line_chart(title, label, [str(mark) for mark in marks], _shared(series), max(0.0, int(low * 20 - 1) / 20))


def _shared(series: Mapping[str, Points]) -> dict[str, Points]:
    """Formats with the same points as one line."""
    names: defaultdict[tuple[tuple[float, Interval], ...], list[str]] = defaultdict(list)
    for name, points in series.items():
        names[tuple(points)].append(name)
    return {_common(shared): points for points, shared in names.items()}


def _common(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} alike"


def accuracy_by_k(results: EvalResults, task: str) -> str:
    """Right answers of each variant by k with Wilson's intervals."""
    counts: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for outcome in results.outcomes:
        if outcome.task == task and outcome.k is not None:
            counts[outcome.variant, outcome.k][0] += outcome.right
            counts[outcome.variant, outcome.k][1] += 1
    marks = sorted({k for _, k in counts})
    series: defaultdict[str, list[tuple[float, Interval]]] = defaultdict(list)
    for (variant, k), (right, count) in sorted(counts.items()):
        series[variant].append((marks.index(k), wilson(right, count)))
    low = min(point.low for points in series.values() for _, point in points)
    return line_chart(f"Right answers, task {task}", "top-k", [str(k) for k in marks], series, int(low * 10) / 10)


def every_chart(results: EvalResults) -> dict[str, str]:
    """SVG by file name, those that have data."""
    found = {}
    ks = sorted({entry.k for entry in results.selections})
    if ks:
        found["recall-by-k.svg"] = recall_by_k(results)
        found["recall-by-context.svg"] = recall_by_context(results, 64 if 64 in ks else ks[0])
    tasks = {outcome.task for outcome in results.outcomes if outcome.k is not None}
    for task in sorted(tasks & {"lookup-alike", "multi-needle"}):
        found[f"accuracy-{task}.svg"] = accuracy_by_k(results, task)
    return found
