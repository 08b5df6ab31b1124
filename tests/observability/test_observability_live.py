"""The real Prometheus scrapes `dsv4 serve` with the embedded engine: every expression is evaluated and has data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.observability.alerts import ALERTS
from tools.observability.boards import BOARDS
from tools.observability.recordings import RECORDINGS

from dsv4_serve.metrics.names import BY_NAME
from dsv4_serve.models import TRAINED_TINY
from observability.load import LENGTHS, Load
from observability.prometheus_server import PrometheusServer
from serve.harness import COMMAND, Launcher, wait_until

ALLOWED_SHARE = 0.15
ABSENT: dict[str, str] = yaml.safe_load((Path(__file__).parent / "absent_with_embedded.yml").read_text())

pytestmark = pytest.mark.slow


def as_grafana_asks(expression: str) -> str:
    """With the variables that Grafana fills in: every replica, and a window of several scrapes."""
    return expression.replace("$instance", ".*").replace("$__rate_interval", "1m")


def expressions() -> dict[str, str]:
    """Every expression by where it stands. Of an alert it is each compared value, which has data when quiet, too."""
    found = {
        f"panel {board.uid} / {panel.title} / {query.legend}": as_grafana_asks(query.expression)
        for board in BOARDS
        for panel in board.panels
        for query in panel.queries
    }
    found |= {f"recording {rule.name}": rule.expression for rule in RECORDINGS}
    found |= {f"recorded {rule.name}": rule.name for rule in RECORDINGS}
    for alert in ALERTS:
        found |= {f"alert {alert.name} / {n}": part.value for n, part in enumerate(alert.conditions)}
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    model = tmp_path_factory.mktemp("models") / "dsv4-tiny"
    # Random weights never repeat a text, and nothing would be drafted.
    shutil.copytree(TRAINED_TINY, model)
    disk = tmp_path_factory.mktemp("tiers") / "disk"
    tiers = ["--hicache", "--hicache-host-bytes", "4MiB", "--hicache-disk-dir", str(disk)]
    options = ["--profile", "tiny", "--speculative", "ngram", *tiers]
    with Launcher(model, options, command=COMMAND) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(server: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    target = server.admin.removeprefix("http://")
    with PrometheusServer([target], tmp_path_factory.mktemp("prometheus")) as running, Load(server.url) as load:
        wait_until(lambda: load.asked > 3 * (len(LENGTHS) + 2), "three rounds of load")
        wait_until(lambda: len(running.query("job:dsv4_hit:ratio_rate6h > 0")) == 1, "rules are evaluated")
        yield running
    assert load.failures == []


def test_every_expression_of_every_panel_and_rule_has_data(
    prometheus: PrometheusServer, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = expressions()
    empty: dict[str, str] = {}

    def all_known() -> bool:
        # A quantile has no value in a scrape interval in which nothing was observed: give it a few.
        empty.clear()
        empty.update({place: text for place, text in wanted.items() if not prometheus.query(text)})
        return all(any(name in text for name in ABSENT) for text in empty.values())

    try:
        wait_until(all_known, "what has no data stands in absent_with_embedded.yml", patience=20)
    finally:
        with capsys.disabled():
            print(f"\n{len(wanted)} expressions of panels and rules, {len(empty)} without data:")
            for place, text in empty.items():
                names = sorted(name for name in ABSENT if name in text)
                print(f"  {place}: {'; '.join(ABSENT[name] for name in names) or 'NO REASON GIVEN: ' + text}")
    assert len(empty) <= ALLOWED_SHARE * len(wanted)


def test_every_reason_is_about_a_series_that_is_really_absent(prometheus: PrometheusServer) -> None:
    for name, reason in ABSENT.items():
        assert name in BY_NAME
        assert len(reason) > 20
        assert prometheus.query(name) == [], f"{name} has data: it needs no reason"


def test_every_rule_is_healthy_and_nothing_fires_on_a_healthy_server(prometheus: PrometheusServer) -> None:
    wait_until(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()), "every rule was evaluated")
    assert len(prometheus.rules()) == len(RECORDINGS) + len(ALERTS)
    firing = [rule["name"] for rule in prometheus.rules() if rule["type"] == "alerting" and rule["state"] == "firing"]
    assert firing == []


def test_prometheus_sees_what_the_server_says(prometheus: PrometheusServer, server: Launcher) -> None:
    kv = {(row["region"], row["tier"]): row for row in server.get("/status.json").json()["kv"]}
    for sample in prometheus.query("job:dsv4_kv_capacity_tokens:sum"):
        place = (sample["metric"]["region"], sample["metric"]["tier"])
        assert float(sample["value"][1]) == kv[place]["capacity_tokens"]
    # Rates extrapolate to the ends of their window by up to a scrape, each series in its own way: with the first two or
    # three scrapes alone a ratio of two of them may exceed 1.
    wait_until(lambda: 0 < float(prometheus.query("job:dsv4_hit:ratio_rate6h")[0]["value"][1]) < 1, "a hit rate")
    (cached,), (prompt,) = (prometheus.query(f"sum (dsv4_{name}_tokens_total)") for name in ("cached", "prompt"))
    assert 0 < float(cached["value"][1]) < float(prompt["value"][1])

    def by_length() -> dict[str, float]:
        samples = prometheus.query("job_length:dsv4_hit:ratio_rate5m")
        return {sample["metric"]["length"]: float(sample["value"][1]) for sample in samples}

    wait_until(lambda: set(by_length()) == {"512", "1024", "2048"}, "a rate for each length that was asked")
    assert by_length()["512"] == 0, "prompts below one page never hit"
    assert by_length()["1024"] > 0


def test_the_tiers_have_series_of_their_own(prometheus: PrometheusServer) -> None:
    def tiers_of(expression: str) -> dict[str, float]:
        return {s["metric"]["tier"]: float(s["value"][1]) for s in prometheus.query(expression)}

    capacity = tiers_of('dsv4_kv_capacity_tokens{region="main"}')
    assert capacity == {"gpu": 65536, "host": 4 * (1 << 20) // 425792 * 256, "disk": (4 << 30) // 429888 * 256}
    assert tiers_of('dsv4_kv_expected_tokens{region="main"}') == capacity
    wait_until(lambda: tiers_of("dsv4_kv_stored_pages_total")["disk"] > 0, "pages on the disk")
    assert set(tiers_of("dsv4_cached_tokens_total")) == {"gpu", "host", "disk"}
    assert set(tiers_of("sum by (tier) (dsv4_kv_refused_pages_total)").values()) == {0}
