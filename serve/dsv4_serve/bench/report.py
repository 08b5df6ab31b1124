"""Tables for people: one of a run, one of two sides with what changed between them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from dsv4_serve.bench.summary import Summary

UNKNOWN = "–"
Figure = tuple[str, Callable[[Summary], float | None], Callable[[float], str]]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.1f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


FIGURES: tuple[Figure, ...] = (
    ("tok/s per GPU", lambda s: s.tokens_per_second_gpu, _number),
    ("output tok/s per GPU", lambda s: s.output_tokens_per_second_gpu, _number),
    ("TTFT p50, ms", lambda s: s.ttft_ms.p50, _number),
    ("TTFT p99, ms", lambda s: s.ttft_ms.p99, _number),
    ("TPOT p50, ms", lambda s: s.tpot_ms.p50, _number),
    ("TPOT p99, ms", lambda s: s.tpot_ms.p99, _number),
    ("KV capacity, tokens", lambda s: s.capacity_tokens, _number),
    ("hit rate expected", lambda s: s.hit_expected, _share),
    ("hit rate measured", lambda s: s.hit_measured, _share),
    ("GPU hit rate", lambda s: s.hit_gpu, _share),
    ("CPU hit rate", lambda s: s.hit_host, _share),
)


def print_runs(console: Console, title: str, rows: Sequence[Summary]) -> None:
    """A row a run: sizes, throughput, percentiles of TTFT, TPOT and latency, hit rates."""
    heads = (
        "server",
        "streams",
        "requests",
        "prompt",
        "output",
        "tok/s/GPU",
        "TTFT p50/p90/p99 ms",
        "TPOT p50/p90/p99 ms",
    )
    table = _table(title, *heads, "latency p50/p90/p99 ms", "hit expected", "measured")
    for row in rows:
        times = [
            " / ".join(_number(t) for t in (p.p50, p.p90, p.p99)) for p in (row.ttft_ms, row.tpot_ms, row.latency_ms)
        ]
        sizes = (
            row.target,
            str(row.concurrency),
            str(row.requests),
            _number(row.prompt_tokens),
            _number(row.output_tokens),
        )
        table.add_row(
            *sizes, _number(row.tokens_per_second_gpu), *times, _share(row.hit_expected), _share(row.hit_measured)
        )
    console.print(table)


def print_sides(console: Console, title: str, a: Sequence[Summary], b: Sequence[Summary]) -> None:
    """Medians of each side's runs, and the change; one that is within the spread of the runs is called neutral."""
    table = _table(title, "", a[0].target, b[0].target, "change")
    for name, figure, shown in FIGURES:
        left, right = ([v for v in map(figure, side) if v is not None] for side in (a, b))
        if not left and not right:
            continue
        cells = [shown(statistics.median(side)) if side else UNKNOWN for side in (left, right)]
        table.add_row(name, *cells, change(left, right))
    console.print(table)


def change(a: Sequence[float], b: Sequence[float]) -> str:
    """From the median of `a` to that of `b`, or "neutral" when the runs of one side differ more than the sides do."""
    if not a or not b or not statistics.median(a):
        return UNKNOWN
    delta = statistics.median(b) - statistics.median(a)
    if delta == 0:
        return "same"
    spread = max(max(a) - min(a), max(b) - min(b))
    relative = f"{100 * delta / statistics.median(a):+.1f} %"
    return f"neutral ({relative})" if len(a) > 1 and abs(delta) <= spread else relative


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, box=MARKDOWN, title_justify="left")
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place == 0 else "right", no_wrap=True)
    return table
