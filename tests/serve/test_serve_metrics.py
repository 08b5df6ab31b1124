"""Metrics: the table of names, the merged exposition, and that unknown things are absent."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.metrics.exposition import MetricsError, exposition
from dsv4_serve.metrics.names import BY_NAME, NAMES, REGIONS, TIERS
from dsv4_serve.metrics.registry import LauncherMetrics
from serve.harness import Launcher
from serve.standin_answers import METRICS

ADAPTER = EmbeddedAdapter(EngineRun(Path("/m"), 1))
ENGINE_TEXT = METRICS % {"generated": 12, "running": 2}


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_names_follow_prometheus_conventions() -> None:
    assert len(BY_NAME) == len(NAMES)
    for entry in NAMES:
        assert entry.name.startswith("dsv4_")
        assert entry.name.endswith("_total") == (entry.type == "counter"), entry.name
        if entry.unit in ("seconds", "bytes", "tokens"):
            assert entry.unit in entry.name, entry.name
    assert len(set(REGIONS)) == 9
    assert TIERS == ("gpu", "host", "disk")


def test_an_engines_samples_pass_through_unchanged() -> None:
    translated = exposition(LauncherMetrics().registry, ADAPTER.translate(ENGINE_TEXT)).decode()
    before = samples(ENGINE_TEXT)
    after = samples(translated)
    assert {key: after[key] for key in before} == before


def test_times_of_birth_are_dropped() -> None:
    born = "# TYPE dsv4_prompt_tokens_created gauge\ndsv4_prompt_tokens_created 1.7e9\n"
    assert [family.name for family in ADAPTER.translate(born)] == []


def test_each_family_appears_once_with_the_tables_type_and_help() -> None:
    text = exposition(LauncherMetrics().registry, ADAPTER.translate(ENGINE_TEXT)).decode()
    for line in text.splitlines():
        if line.startswith("# HELP"):
            _, _, name, help_text = line.split(" ", 3)
            assert BY_NAME[name].help == help_text
            assert text.count(f"# TYPE {name} {BY_NAME[name].type}\n") == 1
    assert not any(line.split("{")[0].split(" ")[0].endswith("_created") for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# TYPE dsv4_kv_free_tokens gauge\ndsv4_kv_free_tokens 1\n", "exports dsv4_kv_free_tokens, which the table"),
        ("# TYPE dsv4_running_requests counter\ndsv4_running_requests_total 1\n", "dsv4_running_requests_total"),
        (
            "# TYPE dsv4_prompt_tokens_total gauge\ndsv4_prompt_tokens_total 1\n",
            "exports a gauge, the table says counter",
        ),
        (
            '# TYPE dsv4_kv_used_tokens gauge\ndsv4_kv_used_tokens{region="main"} 1\n',
            r"exports the labels \['region'\], the table says \['region', 'tier'\]",
        ),
        (
            '# TYPE dsv4_requests_total counter\ndsv4_requests_total{status="200"} 1\n',
            "does not list engine 'embedded'",
        ),
    ],
)
def test_what_the_table_does_not_allow_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(MetricsError, match=message):
        ADAPTER.translate(text)


def test_unknown_is_absent_not_zero() -> None:
    text = exposition(LauncherMetrics().registry, []).decode()
    assert "dsv4_startup_phase_seconds{" not in text
    assert "dsv4_requests_total{" not in text
    assert "dsv4_prompt_tokens_total" not in text
    assert "dsv4_indexer_recall" not in text


def test_both_ports_serve_both_sources(launcher: Launcher) -> None:
    launcher.chat()
    for base in (launcher.url, launcher.admin):
        answer = launcher.http.get(f"{base}/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = samples(answer.text)
        assert found["dsv4_kv_bytes_per_token", (("region", "main"),)] == 584
        assert found["dsv4_requests_total", (("status", "200"),)] >= 1


def test_an_engine_that_breaks_the_table_is_told_and_counted(model_dir: Path) -> None:
    rogue = "# TYPE dsv4_made_up gauge\ndsv4_made_up 1\n"
    with Launcher(model_dir, standin=["--extra-metrics", rogue]) as launcher:
        text = launcher.get("/metrics").text
        assert "dsv4_made_up" not in text
        assert "dsv4_kv_capacity_tokens{" not in text
        assert "dsv4_engine_metrics_refused_total 1.0" in text
        assert "dsv4_engine_up 1.0" in text
    assert "the engine's metrics are refused: engine 'embedded' exports dsv4_made_up" in launcher.text
