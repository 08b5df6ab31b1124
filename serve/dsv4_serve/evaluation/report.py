"""Printing results, and keeping docs/accuracy.md equal to them."""

from __future__ import annotations

import re
from pathlib import Path

from dsv4_serve.errors import CommandError

from .charts import draw, every_chart
from .results import EvalResults
from .tables import every_table

BLOCK = re.compile(r"(<!-- table: (?P<title>[^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def as_text(results: EvalResults) -> str:
    """Every table that has rows, under its title."""
    return "\n\n".join(f"{table.title}\n{table.text()}" for table in every_table(results))


def fill(page: str, results: EvalResults) -> str:
    """The page with the content of every `<!-- table: TITLE -->` block replaced.

    Raises CommandError for a title that no table of these results has.
    """
    tables = {table.title: table.markdown() for table in every_table(results)}

    def replace(match: re.Match[str]) -> str:
        title = match["title"]
        if title not in tables:
            raise CommandError(f"table {title!r}: accepted is one of {', '.join(tables)}")
        return f"{match[1]}{tables[title]}\n{match[3]}"

    return BLOCK.sub(replace, page)


def write_charts(folder: Path, results: EvalResults) -> list[Path]:
    """Write every plot that has data; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [path for name, chart in every_chart(results).items() for path in draw(chart, folder / name)]
