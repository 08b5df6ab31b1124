"""Results to JSON and back, merging, tables, plots, and the page that is held equal to its data."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ElementTree
from html import escape
from pathlib import Path

import pytest

from dsv4_serve.errors import CommandError
from dsv4_serve.evaluation.charts import draw, every_chart
from dsv4_serve.evaluation.lm_eval import PUBLISHED, command, sample_sizes
from dsv4_serve.evaluation.report import as_text, fill
from dsv4_serve.evaluation.results import EvalResults, LogitSummary, Outcome, SelectionSummary, merge
from dsv4_serve.evaluation.tables import accuracy, by_distance, differences, selection

REPOSITORY = Path(__file__).resolve().parents[2]


def outcomes(variant: str, right: list[bool], k: int = 8, seed: int = 0) -> list[Outcome]:
    return [
        Outcome(variant, k, "lookup-alike", seed, place // 5, 300 * place, value) for place, value in enumerate(right)
    ]


def sample() -> EvalResults:
    found = EvalResults({"model": "tiny"})
    found.outcomes += outcomes("bf16", [True] * 9 + [False]) + outcomes("fp4-aiter", [True] * 7 + [False] * 3)
    found.selections += [
        SelectionSummary("bf16", 1, 8, 0, 256, 30, 1.0, 0.0, 1.0, 0.0),
        SelectionSummary("bf16", 3, 8, 0, 256, 10, 0.9, 0.02, 0.75, 0.004),
        SelectionSummary("fault: scales one place off", 1, 8, 0, 256, 30, 0.5, 0.01, 0.125, 0.1),
    ]
    found.logits.append(LogitSummary("bf16", 8, 100, 2.5, 0.001, -0.001, 0.003, 0.0005, 0.25, 0.99))
    return found


def test_results_survive_being_written(tmp_path: Path) -> None:
    sample().write(tmp_path / "r.json")
    assert EvalResults.read(tmp_path / "r.json") == sample()


@pytest.mark.parametrize("text", ["", "{}", '{"format": 9}', '{"format": 1, "about": {}, "outcome_columns": []}'])
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(CommandError, match=r"other\.json: "):
        EvalResults.read(tmp_path / "other.json")


def test_merging_adds_seeds_and_refuses_the_same_twice() -> None:
    more = EvalResults({"model": "tiny"}, outcomes("bf16", [True] * 10, seed=1))
    assert len(merge([sample(), more]).outcomes) == 30
    with pytest.raises(CommandError, match="two of the files hold results of"):
        merge([sample(), EvalResults({"model": "tiny"}, outcomes("bf16", [True]))])
    with pytest.raises(CommandError, match="different models cannot be merged: other, tiny"):
        merge([sample(), EvalResults({"model": "other"})])


def test_accuracy_and_distance_tables() -> None:
    assert accuracy(sample()).rows[0] == ("lookup-alike", "8", "bf16", "10", "90.0", "59.6 to 98.2")
    table = by_distance(sample())
    assert table.columns == ("top-k, index", "0+", "512+", "1024+", "1536+", "2048+", "2560+")
    assert {row[0]: row[1:] for row in table.rows}["8, fp4-aiter"] == ("2/2", "2/2", "2/2", "1/1", "0/2", "0/1")


def test_differences_pair_the_same_questions() -> None:
    ((k, name, pairs, lost_won, points, _, p),) = differences(sample()).rows
    assert (k, name, pairs, lost_won, points, p) == ("8", "fp4-aiter", "10", "-2 +0", "-20.0", "0.50")


def test_no_difference_is_reported_with_what_it_can_have_missed() -> None:
    same = EvalResults({}, outcomes("bf16", [True] * 20) + outcomes("fp8", [True] * 20))
    assert differences(same).rows[0][-3:] == ("+0.0", "none differ: under 13.9 % do", "1.00")


def test_selection_is_weighted_by_queries() -> None:
    assert selection(sample()).rows[0] == ("bf16", "8", "40", "97.5 ± 1.0", "75", "0.00100")


def test_formats_that_pick_the_same_share_a_row() -> None:
    found = sample()
    found.selections += [dataclasses.replace(entry, variant="fp8") for entry in found.selections[:2]]
    assert [row[0] for row in selection(found).rows] == ["bf16, fp8", "fault: scales one place off"]


def test_plots_are_well_formed_and_leave_faults_out(tmp_path: Path) -> None:
    charts = every_chart(sample())
    assert set(charts) == {"recall-by-k", "recall-by-context", "accuracy-lookup-alike"}
    assert len(charts["accuracy-lookup-alike"].series) == 2
    for name, chart in charts.items():
        assert not any("fault" in series for series in chart.series)
        svg, png = draw(chart, tmp_path / name)
        text = svg.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert all(escape(series) in text for series in chart.series)
        assert png.read_bytes().startswith(b"\x89PNG")


def test_a_page_is_filled_between_its_marks() -> None:
    page = "before\n<!-- table: Held-out prose -->\nold\n<!-- end -->\nafter\n"
    filled = fill(page, sample())
    assert filled.startswith("before\n<!-- table: Held-out prose -->\n| index | top-k |")
    assert filled.endswith("| 99.00 |\n<!-- end -->\nafter\n")
    assert "old" not in filled
    assert fill(filled, sample()) == filled
    with pytest.raises(CommandError, match="table 'Nothing': accepted is one of Accuracy"):
        fill("<!-- table: Nothing -->\n<!-- end -->", sample())
    assert "2.5000" in as_text(sample())


def rounded(svg: str) -> str:
    """With coordinates in whole points: processors differ in the last digit of a layout."""
    return re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.0f}", svg).replace("-0", "0")


@pytest.mark.parametrize("name", ["accuracy", "accuracy-v41"])
def test_the_documented_tables_are_those_of_the_stored_results(name: str) -> None:
    page = (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert page.count("<!-- table: ") >= 4
    assert fill(page, EvalResults.read(REPOSITORY / "docs" / f"{name}.json")) == page


def test_the_documented_plots_are_those_of_the_stored_results(tmp_path: Path) -> None:
    results = EvalResults.read(REPOSITORY / "docs" / "accuracy.json")
    page = (REPOSITORY / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for name, chart in every_chart(results).items():
        svg, png = draw(chart, tmp_path / name)
        documented = REPOSITORY / "docs" / "accuracy"
        assert rounded((documented / svg.name).read_text(encoding="utf-8")) == rounded(svg.read_text(encoding="utf-8"))
        assert (documented / png.name).is_file()
        assert f"accuracy/{name}.svg" in page


def test_the_documented_sample_sizes_scores_and_command_are_the_codes() -> None:
    page = (REPOSITORY / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for row in sample_sizes():
        assert f"| {row['points']:.1f} points | {row['independent_runs']:,} | {row['paired']:,} |" in page
    for entry in PUBLISHED:
        assert f"{100 * entry.interval.low:.1f} to {100 * entry.interval.high:.1f}" in page
    written = page.replace("\\\n", " ").split()
    words = command("http://127.0.0.1:8000/v1", "deepseek-v4")
    assert any(written[place : place + len(words)] == words for place in range(len(written)))
