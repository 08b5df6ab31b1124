"""Edit scripts: line numbers of a pre-image and our new lines, and nothing of what stood there.

    @12,14      lines 12 to 14 of the pre-image go, the `|` lines that follow stand in their place
    |new line
    @20+        the `|` lines that follow are put behind line 20 (0: before the first)
    |another

Commands stand in ascending order. Lines are counted from 1; every new line ends with a newline.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

COMMAND = re.compile(r"@(\d+)(?:,(\d+)|\+)")


class EditError(ValueError):
    """An edit script that cannot be read, or that does not fit the text."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines `first`..`last` (1-based, inclusive; last = first - 1 removes none) are replaced by `lines`."""

    first: int
    last: int
    lines: tuple[str, ...]


def parse_edits(text: str) -> tuple[Edit, ...]:
    """EditError names the line of the script that is wrong."""
    edits: list[Edit] = []
    lines: list[str] = []
    span: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("|") and span is not None:
            lines.append(line[1:])
        elif match := COMMAND.fullmatch(line):
            if span is not None:
                edits.append(Edit(*span, tuple(lines)))
            span, lines = _span(match, number), []
        elif line and not line.startswith("#"):
            raise EditError(f"line {number}: {line!r}: accepted is @A,B, @A+, |text or # comment")
    if span is not None:
        edits.append(Edit(*span, tuple(lines)))
    _check(edits)
    return tuple(edits)


def apply_edits(text: str, edits: tuple[Edit, ...]) -> str:
    """The edited text. EditError: a line number beyond its end."""
    lines = text.splitlines(keepends=True)
    if edits and max(edit.last for edit in edits) > len(lines):
        raise EditError(f"line {max(edit.last for edit in edits)}: the text has {len(lines)} lines")
    for edit in reversed(edits):
        lines[edit.first - 1 : edit.last] = [line + "\n" for line in edit.lines]
    return "".join(lines)


def write_edits(before: list[str], after: list[str], opcodes: Sequence[tuple[str, int, int, int, int]]) -> str:
    """The script of difflib's `opcodes`: how a patch is made from two texts (lists of lines without newlines)."""
    script = []
    for kind, first, last, start, end in opcodes:
        if kind == "equal":
            continue
        script.append(f"@{first}+" if first == last else f"@{first + 1},{last}")
        script += [f"|{line}" for line in after[start:end]]
    assert all(last <= len(before) for _, _, last, _, _ in opcodes)
    return "".join(line + "\n" for line in script)


def _span(match: re.Match[str], number: int) -> tuple[int, int]:
    first = int(match[1])
    if match[2] is None:
        return first + 1, first
    last = int(match[2])
    if first < 1 or last < first:
        raise EditError(f"line {number}: {match[0]}: accepted is @A,B with 1 <= A <= B")
    return first, last


def _check(edits: list[Edit]) -> None:
    for before, after in itertools.pairwise(edits):
        if after.first <= before.last:
            raise EditError(f"@{after.first}: commands stand in ascending order and do not overlap")
