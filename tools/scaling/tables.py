"""The study's tables as Markdown; docs/scaling.md holds them, a test compares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def render(results: dict[str, Any]) -> str:
    return "\n\n".join([parameters(results), rows(results), capacity(results), fleets(results)]) + "\n"


def parameters(results: dict[str, Any]) -> str:
    """What the calibration found."""
    workload, fp8, fp4 = (results["calibrated"][name] for name in ("workload", "fp8", "fp4"))
    return _table(
        ("parameter", "value", "fixed by"),
        [
            ("last context of a session, median", f"{workload['last_median']:,.0f} tokens", "published lengths"),
            ("its log-normal sigma", f"{workload['last_sigma']:.2f}", "published lengths"),
            ("turns whose prefix breaks", f"{100 * workload['breaks']:.1f} %", "hit rate of 16 clients, FP8"),
            ("mean pause", f"{workload['gap_seconds']:.1f} s", "throughput of 16 clients, FP8"),
            ("prefill rate of a node", f"{fp8['prefill_rate']:,.0f} tokens/s", "published 8K/1K throughput"),
            ("fixed part of a prefill, FP8", f"{1e3 * fp8['prefill_fixed']:.0f} ms", "TTFT of 16 clients, FP8"),
            ("fixed part of a prefill, FP4", f"{1e3 * fp4['prefill_fixed']:.0f} ms", "TTFT of 16 clients, FP4"),
            ("decode step, FP8", _step(fp8), "published steps of V4.1-Flash"),
            ("decode step, FP4", _step(fp4), "throughput of 16 clients, FP4"),
        ],
    )


def rows(results: dict[str, Any]) -> str:
    """Model against published; the 48-client rows are predictions."""
    lines = []
    for name, title in ROWS.items():
        found = results["rows"][name]
        model, told = found["model"], found["published"]
        lines += [
            (title, "model", *_figures(model)),
            ("", "published", *(_figures({**told, "ttft_median": told["ttft_seconds"]}))),
            ("", "error", *_errors(model, {**told, "ttft_median": told["ttft_seconds"]})),
        ]
    alone = results["rows"]["fp4_pool_fp8_costs_48"]["model"]
    lines.append(("48 clients, FP4's pool at FP8's speed", "model", *_figures(alone)))
    return _table(("row", "", "tokens/s/GPU", "TTFT median", "GPU hit", "host hit"), lines)


def capacity(results: dict[str, Any]) -> str:
    lines = [
        (f"{row['factor']:g}", "yes" if row["host_ratio"] else "no", *_figures(row)) for row in results["capacity"]
    ]
    return _table(("pool", "host tier", "tokens/s/GPU", "TTFT median", "GPU hit", "host hit"), lines)


def fleets(results: dict[str, Any]) -> str:
    lines = [
        (str(row["nodes"]), row["policy"], row["index"].upper(), *_figures(row), f"{100 * row['l3_hit']:.1f} %")
        for row in results["fleets"]
    ]
    head = ("nodes", "route", "pool", "tokens/s/GPU", "TTFT median", "GPU hit", "host hit", "L3 hit")
    return _table(head, lines)


ROWS = {
    "fp8_16": "16 clients, FP8 (fixes parameters)",
    "fp4_16": "16 clients, FP4 (fixes parameters)",
    "fp8_48": "48 clients, FP8 (predicted)",
    "fp4_48": "48 clients, FP4 (predicted)",
}


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    hits = (f"{100 * row['gpu_hit']:.1f} %", f"{100 * row['host_hit']:.1f} %")
    return (f"{row['throughput']:,.0f}", f"{1e3 * row['ttft_median']:,.0f} ms", *hits)


def _errors(model: dict[str, Any], told: dict[str, Any]) -> tuple[str, ...]:
    relative = [f"{100 * (model[name] / told[name] - 1):+.1f} %" for name in ("throughput", "ttft_median")]
    points = [f"{100 * (model[name] - told[name]):+.1f} points" for name in ("gpu_hit", "host_hit")]
    return (*relative, *points)


def _step(costs: dict[str, Any]) -> str:
    return f"{1e3 * costs['step_base']:.2f} ms + {1e3 * costs['step_sequence']:.3f} ms a sequence"


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    body = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *body])
