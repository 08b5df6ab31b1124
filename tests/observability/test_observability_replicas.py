"""Two replicas of two data-parallel ranks of two tensor-parallel ranks each: what adds up, and what the worst decides.

SGLang's text goes through the adapter, its families into promtool, and from there through the panels' own expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tools.observability.boards import BOARDS

from dsv4_serve.engines.sglang_metrics import translate
from observability.promtool import input_series, unit

Ranks = Mapping[tuple[int, int], tuple[int, int, int]]
"""(dp rank, tp rank) to used tokens without evictable ones, evictable tokens, running requests."""

A: Ranks = {(0, 0): (500, 100, 3), (0, 1): (510, 100, 3), (1, 0): (40, 0, 1), (1, 1): (40, 0, 1)}
B: Ranks = {(0, 0): (950, 50, 8), (0, 1): (950, 50, 8), (1, 0): (980, 20, 9), (1, 1): (970, 20, 9)}
CAPACITY = 1000
PROMPT_TOKENS = {"a:8001": 6000, "b:8001": 2000}
CACHED_TOKENS = {"a:8001": 600, "b:8001": 1000}
"""By replica, over ten minutes, in steps of one minute."""


def sglang_text(ranks: Ranks, prompt: int, cached: int) -> str:
    """What SGLang exports: gauges by rank, counters by data-parallel rank only."""
    lines = []
    for place, name in enumerate(("kv_used_tokens", "kv_evictable_tokens", "num_running_reqs")):
        lines.append(f"# TYPE sglang:{name} gauge")
        lines += [
            f'sglang:{name}{{dp_rank="{dp}",tp_rank="{tp}"}} {values[place]}' for (dp, tp), values in ranks.items()
        ]
    lines.append("# TYPE sglang:max_total_num_tokens gauge")
    lines += [f'sglang:max_total_num_tokens{{dp_rank="{dp}",tp_rank="{tp}"}} {CAPACITY}' for dp, tp in ranks]
    for name, value, source in (("prompt", prompt, ""), ("cached", cached, ',cache_source="device"')):
        lines.append(f"# TYPE sglang:{name}_tokens_total counter")
        lines += [f'sglang:{name}_tokens_total{{dp_rank="{dp}"{source}}} {value // 2}' for dp in (0, 1)]
    return "\n".join(lines) + "\n"


def series(ranks: Ranks, instance: str) -> dict[str, str]:
    """The adapter's samples of one replica as promtool's series: gauges level, counters rising evenly from 0."""
    found = {}
    for family in translate(sglang_text(ranks, PROMPT_TOKENS[instance], CACHED_TOKENS[instance])):
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in {**sample.labels, "job": "dsv4", "instance": instance}.items())
            step = f"0+{sample.value / 10:g}x10" if family.type == "counter" else f"{sample.value:g}x10"
            found[f"{sample.name}{{{labels}}}"] = step
    return found


def panel(board: str, title: str, legend: str, chosen: str) -> str:
    """A panel's expression for the chosen replicas."""
    (expression,) = (
        query.expression
        for found in BOARDS
        if found.uid == board
        for each in found.panels
        if each.title == title
        for query in each.queries
        if query.legend == legend
    )
    return expression.replace("$instance", chosen).replace("$__rate_interval", "5m")


def expects(expression: str, labels: str, value: float) -> dict[str, Any]:
    return {"expr": expression, "eval_time": "10m", "exp_samples": [{"labels": labels, "value": value}]}


@pytest.mark.parametrize(
    ("chosen", "fits", "held", "running", "hit_rate"),
    [
        # Of a data-parallel rank the fullest tensor-parallel rank counts (510, not 500); these ranks add up.
        ("a:8001", 2000, (510 + 40) / 2000, 4, 600 / 6000),
        ("b:8001", 2000, (950 + 980) / 2000, 17, 1000 / 2000),
        # Tokens and requests add up; the fuller replica decides; the hit rate is weighted by tokens, no mean of rates.
        (".*", 4000, (950 + 980) / 2000, 21, 1600 / 8000),
    ],
)
def test_tokens_add_up_the_fullest_decides_and_hit_rates_are_weighted(
    chosen: str, fits: int, held: float, running: int, hit_rate: float, tmp_path: Path
) -> None:
    tests = [
        expects(panel("dsv4-overview", "Context that fits", "tokens", chosen), "{}", fits),
        expects(panel("dsv4-overview", "Held by running requests", "held", chosen), "{}", held),
        expects(panel("dsv4-overview", "Requests in the engine", "running", chosen), "{}", running),
        expects(panel("dsv4-overview", "Hit rate", "hit rate", chosen), "{}", hit_rate),
        expects(panel("dsv4-capacity", "Hit rate by tier", "{{tier}}", chosen), '{tier="gpu"}', hit_rate),
        expects(panel("dsv4-tiers", "Capacity by tier", "{{tier}}", chosen), '{tier="gpu"}', fits),
    ]
    both = input_series(series(A, "a:8001") | series(B, "b:8001"))
    done = unit([{"input_series": both, "promql_expr_test": tests}], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_recorded_sums_and_maxima(tmp_path: Path) -> None:
    main = 'region="main",tier="gpu",job="dsv4"'
    tests = [
        expects("job:dsv4_kv_capacity_tokens:sum", f"job:dsv4_kv_capacity_tokens:sum{{{main}}}", 4000),
        expects(
            "job:dsv4_kv_used_tokens:sum",
            f"job:dsv4_kv_used_tokens:sum{{{main}}}",
            (510 + 100 + 40) + (950 + 50 + 980 + 20),
        ),
        expects("job:dsv4_kv_held:ratio_max", 'job:dsv4_kv_held:ratio_max{job="dsv4"}', 0.965),
        expects("job:dsv4_hit:ratio_rate5m", 'job:dsv4_hit:ratio_rate5m{job="dsv4"}', 0.2),
        expects("job_tier:dsv4_hit:ratio_rate5m", 'job_tier:dsv4_hit:ratio_rate5m{job="dsv4",tier="gpu"}', 0.2),
    ]
    both = input_series(series(A, "a:8001") | series(B, "b:8001"))
    done = unit([{"input_series": both, "promql_expr_test": tests}], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_sum_would_be_seen(tmp_path: Path) -> None:
    test = expects(panel("dsv4-overview", "Context that fits", "tokens", ".*"), "{}", 8000)
    both = input_series(series(A, "a:8001") | series(B, "b:8001"))
    assert unit([{"input_series": both, "promql_expr_test": [test]}], tmp_path).returncode != 0
