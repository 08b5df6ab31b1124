"""The generated pages are what the code generates."""

from __future__ import annotations

import pytest

from dsv4_serve.flags import FLAGS
from dsv4_serve.metrics.names import NAMES
from dsv4_serve.profiles.load import REPOSITORY
from dsv4_serve.reference_docs import PAGES, flags_page, metrics_page


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_current(name: str) -> None:
    assert (REPOSITORY / name).read_text() == PAGES[name](), "run `python tools/generate_docs.py`"


def test_every_toggle_and_every_metric_has_one_row() -> None:
    for flag in FLAGS:
        assert flags_page().count(f"| `{flag.name}` | `{flag.twin}` |") == 1
    for entry in NAMES:
        assert metrics_page().count(f"| `{entry.name}` | {entry.type} |") == 1


def test_tables_have_the_same_number_of_cells_in_every_row() -> None:
    for page in PAGES.values():
        for block in page().split("\n\n"):
            rows = [line.replace("\\|", "") for line in block.splitlines() if line.startswith("|")]
            assert len({row.count("|") for row in rows}) <= 1
