"""Three plots of the study, SVG and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "dsv4"
from matplotlib import pyplot as plt  # noqa: E402  the backend is chosen first
from tools.scaling import published  # noqa: E402


def draw(results: dict[str, Any], folder: Path) -> None:
    _capacity(results["capacity"], folder / "capacity")
    _fleet(results["fleets"], "gpu_hit", "prompt tokens found on the GPU (%)", 100.0, folder / "hit-by-nodes")
    _fleet(results["fleets"], "ttft_median", "median time to first token (s)", 1.0, folder / "ttft-by-nodes")


def _capacity(rows: Sequence[dict[str, Any]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    millions = published.FP8_48.gpu_tokens / 1e6
    for host_ratio, style in ((0.0, "--"), (2.0, "-")):
        chosen = [row for row in rows if row["host_ratio"] == host_ratio]
        at = [row["factor"] * millions for row in chosen]
        tier = "with a host tier" if host_ratio else "without a host tier"
        axes.plot(at, [100 * row["gpu_hit"] for row in chosen], style, color="#1f6feb", label=f"GPU hit, {tier}")
        if host_ratio:
            total = [100 * (row["gpu_hit"] + row["host_hit"]) for row in chosen]
            axes.plot(at, total, style, color="#1a7f37", label="GPU and host hit")
    for row, name in ((published.FP8_48, "published, FP8"), (published.FP4_48, "published, FP4")):
        axes.plot(row.gpu_tokens / 1e6, 100 * row.gpu_hit, "o", color="#d1242f")
        axes.annotate(name, (row.gpu_tokens / 1e6, 100 * row.gpu_hit), xytext=(6, -12), textcoords="offset points")
    axes.set(xlabel="pool of one node (million tokens), 48 clients", ylabel="share of prompt tokens (%)")
    _save(figure, axes, path)


def _fleet(rows: Sequence[dict[str, Any]], field: str, label: str, scale: float, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for policy, index in dict.fromkeys((row["policy"], row["index"]) for row in rows):
        chosen = [row for row in rows if (row["policy"], row["index"]) == (policy, index)]
        style = "-" if index == "fp8" else "--"
        colour = COLOURS[policy]
        name = f"{policy}, {index.upper()} pool"
        axes.plot([r["nodes"] for r in chosen], [scale * r[field] for r in chosen], style, color=colour, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    axes.set(xlabel="nodes, 48 clients each", ylabel=label, yscale="log" if field == "ttft_median" else "linear")
    _save(figure, axes, path)


COLOURS = {
    "cache-aware": "#1f6feb",
    "least loaded": "#9a6700",
    "round robin": "#d1242f",
    "round robin, shared L3": "#8250df",
}


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    axes.set_title("simulated; see docs/scaling.md", fontsize=9)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=110, metadata={"Software": None})
    plt.close(figure)
