"""docs/sglang.md: the tables of the plugin's hooks and of AITER's symbols say what the code has."""

from __future__ import annotations

import re
from pathlib import Path

from dsv4_serve.engines.sglang import fixes, index_format, products, routing, start, symbols

PAGE = (Path(__file__).parents[2] / "docs" / "sglang.md").read_text()


def rows(header: str) -> list[tuple[str, ...]]:
    """The cells of the table with this first header cell."""
    table = re.search(rf"^\| {re.escape(header)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert table is not None, header
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in table[1].splitlines()]


def test_hooks() -> None:
    declared = [hook for part in (start, routing, fixes, products, index_format) for hook in part.HOOKS]
    shown = [(f"`{hook.name.removeprefix('sglang.')}`", hook.reason) for hook in declared]
    assert [row for row in rows("hook") if row in shown] == shown


def test_symbols() -> None:
    shown = [(cells[0].partition(" with ")[0], *cells[1:]) for cells in rows("symbol")]
    served = [f"`{s.operation}`" if s.operation else "nothing: a failed start" for s in symbols.SYMBOLS]
    told = [(f"`{s.path}`", s.flags, by) for s, by in zip(symbols.SYMBOLS, served, strict=True)]
    assert shown == told


def test_each_operation_of_the_table_is_routed() -> None:
    told = {cells[1].partition("(")[0].strip("`") for cells in rows("operation")}
    assert {call for call in told if not call.startswith("the same")} <= {hook.attribute for hook in routing.HOOKS}
