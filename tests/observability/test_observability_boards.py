"""The committed dashboards and rules: generated from the code, well-formed, and about metrics that exist."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from tools.observability import generate
from tools.observability.alerts import ALERTS
from tools.observability.board import COLUMNS, Panel, Query
from tools.observability.boards import BOARDS
from tools.observability.expressions import metric, quantile, total
from tools.observability.recordings import RECORDINGS

from dsv4_serve.metrics.names import BY_NAME

GRAFANA = generate.REPOSITORY / "configs" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
TITLES = ("overview", "KV capacity and hit rate", "indexer", "latency", "cache tiers", "start-up")
FAMILY = re.compile(r"\bdsv4_[a-z0-9_]+")


def expressions() -> Iterator[str]:
    for board in BOARDS:
        for panel in board.panels:
            yield from (query.expression for query in panel.queries)
    yield from (rule.expression for rule in RECORDINGS)
    yield from (alert.expression for alert in ALERTS)


def panels(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["panels"]
    return found


def lost(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Where `after` lacks something of `before`, or has another value."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after.get(key), f"{at}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, value in enumerate(before):
            yield from lost(value, after[number], f"{at}/{number}")
    elif before != after:
        yield at


def test_every_generated_file_is_committed_as_the_code_has_it() -> None:
    assert generate.stale() == [], "run `python -m tools.observability.generate`"
    assert len(FILES) == len(BOARDS)
    assert tuple(board.title.removeprefix("DSV4 ") for board in BOARDS) == TITLES


def test_a_changed_a_missing_and_a_stray_file_are_found(tmp_path: Path) -> None:
    for path, text in generate.generated().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert generate.stale(tmp_path) == []
    boards = generate.DASHBOARDS
    (tmp_path / boards / "dsv4-latency.json").write_text("{}\n")
    (tmp_path / generate.RULES / "alert_rules.yml").unlink()
    (tmp_path / boards / "old.json").write_text("{}")
    assert generate.stale(tmp_path) == [
        boards / "dsv4-latency.json",
        generate.RULES / "alert_rules.yml",
        boards / "old.json",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_grafanas_model_reads_every_key_and_writes_it_back(path: Path) -> None:
    """A key or a type that the model does not know would not come back."""
    register_default_plugins()
    document = json.loads(path.read_text())
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(document))))
    assert list(lost(document, again)) == []
    assert path.stem == document["uid"]
    document["panels"][1]["titel"] = "x"
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(document))))
    assert list(lost(document, again)) == ["/panels/1/titel"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_panels_have_their_own_numbers_and_places(path: Path) -> None:
    every = panels(path)
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        references = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(references)) == len(references)


def test_every_expression_is_about_metrics_that_exist() -> None:
    recorded = {rule.name for rule in RECORDINGS}
    for expression in expressions():
        plain = re.sub("|".join(map(re.escape, sorted(recorded, key=len, reverse=True))), "", expression)
        for name in FAMILY.findall(plain):
            family = re.sub("_(bucket|sum|count)$", "", name)
            known = name in BY_NAME or (family in BY_NAME and BY_NAME[family].type == "histogram")
            assert known, f"{name} in {expression}"
            # A counter is only ever looked at through its changes, or shown as the total that it is.
            assert name not in BY_NAME or BY_NAME[name].type != "histogram", expression


def test_every_metric_is_on_a_dashboard() -> None:
    shown = " ".join(query.expression for board in BOARDS for panel in board.panels for query in panel.queries)
    assert [name for name in BY_NAME if name not in shown] == []


def test_names_and_labels_are_checked_where_a_panel_is_written() -> None:
    with pytest.raises(ValueError, match="dsv4_kv_free_tokens: not in the table"):
        metric("dsv4_kv_free_tokens")
    with pytest.raises(ValueError, match="dsv4_kv_used_tokens has no label 'pool'; accepted are instance, job, region"):
        total("dsv4_kv_used_tokens", ("pool",))
    with pytest.raises(ValueError, match="has no label 'tier'"):
        metric("dsv4_generated_tokens_total", 'tier="gpu"')
    assert quantile(0.5, "dsv4_time_to_first_token_seconds").count("dsv4_time_to_first_token_seconds_bucket") == 1


def test_a_panel_that_explains_nothing_or_is_too_wide_is_refused() -> None:
    query = (Query("up", "x"),)
    with pytest.raises(ValueError, match="a meaning that is a sentence"):
        Panel("t", "", "none", query)
    with pytest.raises(ValueError, match="width 25; accepted is 1 to 24"):
        Panel("t", "It is.", "none", query, width=25)


def test_provisioning_names_the_source_that_the_dashboards_use() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    for path in FILES:
        for panel in panels(path):
            assert panel.get("datasource", {"uid": source["uid"]})["uid"] == source["uid"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/dsv4.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    assert not provider["allowUiUpdates"]
