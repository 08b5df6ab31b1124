"""The committed card is what the committed results say."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from tools.training import card

REPOSITORY = Path(__file__).parents[2]
MODELS = [REPOSITORY / "configs" / "models" / name for name in ("tiny-v4", "tiny-v41")]


def results_of(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "results.json").read_text())
    return found


@pytest.mark.parametrize("directory", MODELS, ids=lambda directory: directory.name)
def test_card_and_curve_are_up_to_date(directory: Path) -> None:
    results = results_of(directory)
    written = card.card(results, card.template_of(directory))
    assert (directory / "CARD.md").read_text() == written
    assert "{{" not in written
    assert (directory / "curve.svg").read_text() == card.plot(results["curve"])


@pytest.mark.parametrize("directory", MODELS, ids=lambda directory: directory.name)
def test_the_look_ups_meet_the_aim_and_need_the_index(directory: Path) -> None:
    lookup = results_of(directory)["lookup"]
    far = [pair for edge, pair in lookup["exact"]["by_distance"].items() if 512 <= int(edge) <= 3500]
    assert sum(right for right, _ in far) >= 0.95 * sum(count for _, count in far)
    assert sum(count for _, count in far) > 100
    for ablated in ("random index", "no entries"):
        assert not any(right for right, _ in lookup[ablated]["by_distance"].values())


@pytest.mark.parametrize("directory", MODELS, ids=lambda directory: directory.name)
def test_the_curve_is_a_drawing_with_every_series(directory: Path) -> None:
    root = ElementTree.fromstring(card.plot(results_of(directory)["curve"]))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4
    assert all(len(line.attrib["points"].split()) > 30 for line in lines)


@pytest.mark.parametrize(
    ("right", "count", "low", "high"), [(500, 500, 0.9924, 1.0), (0, 500, 0.0, 0.0076), (5, 10, 0.2366, 0.7634)]
)
def test_the_interval_is_wilson_s(right: int, count: int, low: float, high: float) -> None:
    assert card.wilson(right, count) == pytest.approx((low, high), abs=1e-4)


def test_the_look_up_table_counts_questions() -> None:
    lookup = {"exact": {"questions": 30, "by_distance": {"0": [9, 10], "512": [20, 20]}}}
    table = card.lookup_table(lookup)
    assert table[0] == "| index | all (95 % interval) | 0+ | 512+ |"
    assert table[2].startswith("| exact | 96.7 % (83.3 to 99.4) | 90 % | 100 % |")
    assert table[-1] == "| *questions* | 30 | 10 | 20 |"
