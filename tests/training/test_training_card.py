"""The committed card is what the committed results say."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from tools.training import card

REPOSITORY = Path(__file__).parents[2]
MODEL_DIR = REPOSITORY / "configs" / "models" / "tiny-v4"
RESULTS = json.loads((MODEL_DIR / "results.json").read_text())


def test_card_and_curve_are_up_to_date() -> None:
    template = (REPOSITORY / "tools" / "training" / "card_template.md").read_text()
    written = card.card(RESULTS, template)
    assert (MODEL_DIR / "CARD.md").read_text() == written
    assert "{{" not in written
    assert (MODEL_DIR / "curve.svg").read_text() == card.plot(RESULTS["curve"])


def test_the_curve_is_a_drawing_with_every_series() -> None:
    root = ElementTree.fromstring(card.plot(RESULTS["curve"]))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4
    assert all(len(line.attrib["points"].split()) > 50 for line in lines)


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
