"""promtool on the committed configuration and rules, with a scenario for every alert."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.observability.alerts import ALERTS

from observability.alert_scenarios import SCENARIOS, Scenario
from observability.promtool import RULE_FILES, RULES, input_series, promtool, unit

BY_NAME = {alert.name: alert for alert in ALERTS}


def test_configuration_and_rules_are_what_prometheus_accepts() -> None:
    config = promtool("check", "config", RULES / "prometheus.yml")
    assert config.returncode == 0, config.stdout + config.stderr
    assert "2 rule files found" in config.stdout
    rules = promtool("check", "rules", "--lint-fatal", *RULE_FILES)
    assert rules.returncode == 0, rules.stdout + rules.stderr


def test_there_are_ten_alerts_or_more_and_each_has_one_scenario() -> None:
    assert len(ALERTS) >= 10
    assert sorted(s.alert for s in SCENARIOS) == sorted(BY_NAME)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.alert)
def test_it_is_quiet_before_and_fires_with_its_words(scenario: Scenario, tmp_path: Path) -> None:
    alert = BY_NAME[scenario.alert]
    fired = {
        "exp_labels": {"severity": alert.severity, **scenario.labels},
        "exp_annotations": {"summary": scenario.says, "description": alert.action},
    }
    test = {
        "input_series": input_series(scenario.series),
        "alert_rule_test": [
            {"eval_time": f"{scenario.quiet_at}m", "alertname": alert.name, "exp_alerts": []},
            {"eval_time": f"{scenario.fires_at}m", "alertname": alert.name, "exp_alerts": [fired]},
        ],
    }
    done = unit([test], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_scenario_that_expects_other_words_fails(tmp_path: Path) -> None:
    scenario = SCENARIOS[0]
    wrong = {"exp_labels": {"severity": "page", **scenario.labels}, "exp_annotations": {"summary": "something else"}}
    at = {"eval_time": f"{scenario.fires_at}m", "alertname": scenario.alert, "exp_alerts": [wrong]}
    assert unit([{"input_series": input_series(scenario.series), "alert_rule_test": [at]}], tmp_path).returncode != 0
