"""Plots of an evaluation, as data and as drawn by matplotlib: recall by index format and context, accuracy by top-k."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv4_serve.errors import CommandError

from .results import EvalResults, SelectionSummary
from .statistics import Interval, wilson

FORMATS = ("svg", "png")
Points = Sequence[tuple[float, Interval]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over evenly spaced x (index into `x_names`); y is a share from `low` to 1, with its interval."""

    title: str
    x_label: str
    x_names: Sequence[str]
    series: Mapping[str, Points]
    low: float


def draw(chart: Chart, path: Path) -> list[Path]:
    """Write `path` as SVG and PNG; CommandError without matplotlib, which serving does not need."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter
    except ImportError as error:
        raise CommandError(f"plots need matplotlib (`pip install matplotlib`): {error}") from error
    # Text stays text, and a figure drawn again has the same bytes.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "dsv4", "font.size": 9}):
        figure = Figure(figsize=(7.4, 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for number, (name, points) in enumerate(chart.series.items()):
            shift = (number - (len(chart.series) - 1) / 2) * 0.02
            at = [place + shift for place, _ in points]
            values = [interval.value for _, interval in points]
            spread = [
                [interval.value - interval.low for _, interval in points],
                [interval.high - interval.value for _, interval in points],
            ]
            axes.errorbar(at, values, yerr=spread, label=name, marker="o", markersize=3, linewidth=1.3, capsize=2)
        axes.set_xticks(range(len(chart.x_names)), list(chart.x_names))
        axes.set(title=chart.title, xlabel=chart.x_label, ylim=(chart.low, 1.01))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(alpha=0.3)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        written = [path.with_suffix(f".{kind}") for kind in FORMATS]
        figure.savefig(written[0], metadata={"Date": None})
        figure.savefig(written[1], dpi=120, metadata={"Software": None})
    return written


def recall_by_k(results: EvalResults) -> Chart:
    """Recall of each sound variant by k, all layers and contexts."""
    return _recall(results, "Recall of the exact top-k", "top-k", lambda entry: entry.k, None)


def recall_by_context(results: EvalResults, k: int) -> Chart:
    """Recall of each sound variant at one k by entries seen."""
    return _recall(results, f"Recall of the exact top-{k} by context", "entries seen, from", lambda entry: entry.low, k)


def _recall(
    results: EvalResults, title: str, label: str, place: Callable[[SelectionSummary], int], k: int | None
) -> Chart:
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
    return Chart(title, label, [str(mark) for mark in marks], _shared(series), max(0.0, int(low * 20 - 1) / 20))


def _shared(series: Mapping[str, Points]) -> dict[str, Points]:
    """Formats with the same points as one line."""
    names: defaultdict[tuple[tuple[float, Interval], ...], list[str]] = defaultdict(list)
    for name, points in series.items():
        names[tuple(points)].append(name)
    return {_common(shared): points for points, shared in names.items()}


def _common(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} alike"


def accuracy_by_k(results: EvalResults, task: str) -> Chart:
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
    return Chart(f"Right answers, task {task}", "top-k", [str(k) for k in marks], series, int(low * 10) / 10)


def every_chart(results: EvalResults) -> dict[str, Chart]:
    """Charts by file name without its ending, those that have data."""
    found = {}
    ks = sorted({entry.k for entry in results.selections})
    if ks:
        found["recall-by-k"] = recall_by_k(results)
        found["recall-by-context"] = recall_by_context(results, 64 if 64 in ks else ks[0])
    tasks = {outcome.task for outcome in results.outcomes if outcome.k is not None}
    for task in sorted(tasks & {"lookup-alike", "multi-needle"}):
        found[f"accuracy-{task}"] = accuracy_by_k(results, task)
    return found
