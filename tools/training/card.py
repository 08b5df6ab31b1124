"""Write CARD.md and curve.svg of a model directory from its results.json: `python -m tools.training.card DIR`.

results.json holds what the training runs and the evaluation wrote, so every number of the card can be traced.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

PLOT = (360, 200)
MARGIN = 44
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37")
Series = list[tuple[float, float]]


def wilson(right: int, count: int) -> tuple[float, float]:
    """95 % confidence interval of a share."""
    z, share = 1.96, right / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    width = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, centre - width), min(1.0, centre + width)


def lookup_table(lookup: dict[str, Any]) -> list[str]:
    """Rows of index mode by distance; a distance bucket holds [right, asked]."""
    buckets = list(lookup["exact"]["by_distance"])
    lines = [
        "| index | all (95 % interval) | " + " | ".join(f"{int(b)}+" for b in buckets) + " |",
        "| --- |" + " --- |" * (len(buckets) + 1),
    ]
    for name, result in lookup.items():
        right = sum(pair[0] for pair in result["by_distance"].values())
        low, high = wilson(right, result["questions"])
        shares = [f"{100 * r / n:.0f} %" for r, n in (result["by_distance"][b] for b in buckets)]
        total = f"{100 * right / result['questions']:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        lines.append(f"| {name} | {total} | " + " | ".join(shares) + " |")
    asked = " | ".join(str(lookup["exact"]["by_distance"][b][1]) for b in buckets)
    return [*lines, f"| *questions* | {lookup['exact']['questions']} | {asked} |"]


def language_table(language: dict[str, dict[str, Any]]) -> list[str]:
    """Perplexity per byte beside the order-3 byte model's."""
    lines = ["| held-out text | this model | order-3 byte model | ratio |", "| --- | --- | --- | --- |"]
    for name, row in language.items():
        ratio = row["order-3"] / row["model"]
        lines.append(f"| {name} | {row['model']:.3f} | {row['order-3']:.3f} | {ratio:.2f} |")
    return lines


def panel(title: str, series: dict[str, Series], left: int, top: float) -> list[str]:
    """SVG elements of one line plot; y runs from 0 to `top`."""
    width, height = PLOT
    right = max(x for points in series.values() for x, _ in points)
    x0, y0 = left + MARGIN, height + MARGIN
    parts = [
        f'<text x="{left + MARGIN}" y="28" class="title">{title}</text>',
        f'<path class="axis" d="M{x0} {MARGIN}V{y0}H{x0 + width}"/>',
        f'<text x="{x0 - 6}" y="{y0}" class="y">0</text><text x="{x0 - 6}" y="{MARGIN + 8}" class="y">{top:g}</text>',
        f'<text x="{x0 + width}" y="{y0 + 16}" class="y">step {right:.0f}</text>',
    ]
    for number, (name, points) in enumerate(series.items()):
        path = " ".join(
            f"{x0 + x / right * width:.1f},{y0 - min(y, top) / top * height:.1f}" for x, y in sorted(points)
        )
        parts.append(f'<polyline points="{path}" stroke="{COLOURS[number]}"/>')
        parts.append(f'<text x="{x0 + 130}" y="{MARGIN + 14 + 16 * number}" fill="{COLOURS[number]}">{name}</text>')
    return parts


def plot(curve: list[dict[str, float]]) -> str:
    """curve.svg: look-up accuracy and losses by step. A step whose batch held no such token is left out."""

    def series(name: str) -> Series:
        return [(point["step"], point[name]) for point in curve if point.get("text" if name == "text" else "lookup", 0)]

    width, height = 2 * (PLOT[0] + 2 * MARGIN), PLOT[1] + 2 * MARGIN
    style = (
        "text{font:12px sans-serif}.title{font-weight:bold}.y{text-anchor:end}.axis{stroke:#888;fill:none}"
        "polyline{fill:none;stroke-width:1.5}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<style>{style}</style><rect width="{width}" height="{height}" fill="white"/>',
        *panel("digits looked up right (training)", {"accuracy": series("accuracy")}, 0, 1.0),
        *panel(
            "loss in nats",
            {"text": series("text"), "looked-up digits": series("lookup"), "index KL": series("divergence")},
            PLOT[0] + 2 * MARGIN,
            2.5,
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def card(results: dict[str, Any], template: str) -> str:
    """The template with {{name}} replaced by what results.json holds."""
    values = {
        "steps": f"{results['progress']['steps']:,}",
        "tokens": f"{results['progress']['tokens'] / 1e6:.0f} million",
        "minutes": f"{results['progress']['seconds'] / 60:.1f}",
        "lookup": "\n".join(lookup_table(results["lookup"])),
        "language": "\n".join(language_table(results["language"])),
        "free": "{} of {}".format(*results["embedded engine, fp4"]),
        "copy": f"{100 * results['turns']['copy']:.0f} %",
        "small_talk": f"{100 * results['turns']['small talk']:.0f} %",
        "samples": "\n\n".join(f"> **{s['user']}**\n>\n> {s['assistant']}" for s in results["samples"]),
    }
    if "keys alike, cpu" in results:
        values["alike"] = "{} of {}".format(*results["keys alike, cpu"])
    if "lookup, keys alike" in results:
        values["alike_table"] = "\n".join(lookup_table(results["lookup, keys alike"]))
        values["missing"] = f"{100 * results['missing keys']:.0f} %"
    for name, value in values.items():
        template = template.replace("{{" + name + "}}", value)
    return template


def template_of(directory: Path) -> str:
    """The card's text for the model in a directory."""
    v41 = json.loads((directory / "config.json").read_text())["model_type"] == "deepseek_v41"
    return (Path(__file__).parent / ("card_template_v41.md" if v41 else "card_template.md")).read_text()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("directory", type=Path, help="model directory with results.json")
    directory: Path = parser.parse_args().directory
    results = json.loads((directory / "results.json").read_text())
    (directory / "CARD.md").write_text(card(results, template_of(directory)))
    (directory / "curve.svg").write_text(plot(results["curve"]))


if __name__ == "__main__":
    main()
