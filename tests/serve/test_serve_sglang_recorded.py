"""SGLang's metrics as its real server exported them, before and after known requests, translated.

Recorded by tests/sglang/simulated_server/record_metrics.py: a prompt of 300 tokens twice, each answered with 4, then a
streamed chat of 9 tokens answered with 12.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4_serve.engines.sglang_metrics import RULES, translate

RECORDED = Path(__file__).with_name("sglang_metrics")


def values(name: str) -> dict[str, float]:
    return {
        sample.name + "".join(f" {key}={value}" for key, value in sorted(sample.labels.items())): sample.value
        for family in translate((RECORDED / f"{name}.txt").read_text())
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def before() -> dict[str, float]:
    return values("before")


@pytest.fixture(scope="module")
def after() -> dict[str, float]:
    return values("after")


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("dsv4_prompt_tokens_total", 300 + 300 + 9),
        ("dsv4_cached_tokens_total tier=gpu", 256),
        ("dsv4_generated_tokens_total", 4 + 4 + 12),
        ("dsv4_time_to_first_token_seconds_count", 3),
        ("dsv4_time_to_first_token_seconds_bucket le=+Inf", 3),
        ("dsv4_inter_token_latency_seconds_count", 11),
    ],
)
def test_counters_grew_by_what_was_sent(
    before: dict[str, float], after: dict[str, float], name: str, added: int
) -> None:
    assert after[name] - before.get(name, 0) == added


def test_pools_are_those_of_the_server(after: dict[str, float]) -> None:
    assert after["dsv4_kv_capacity_tokens region=main tier=gpu"] == 16384
    assert after["dsv4_kv_capacity_tokens region=window tier=gpu"] == 1536
    assert after["dsv4_kv_evictable_tokens region=main tier=gpu"] == 256
    assert (after["dsv4_running_requests"], after["dsv4_queued_requests"]) == (0, 0)


def test_latencies_are_whole_histograms(after: dict[str, float]) -> None:
    for name in ("dsv4_time_to_first_token_seconds", "dsv4_inter_token_latency_seconds"):
        buckets = sorted(
            (float(key.rpartition("le=")[2]), value) for key, value in after.items() if key.startswith(f"{name}_bucket")
        )
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (float("inf"), after[f"{name}_count"])
        assert after[f"{name}_sum"] > 0


def test_every_source_of_a_server_without_tiers_is_in_the_recording() -> None:
    text = (RECORDED / "after.txt").read_text()
    absent = {rule.source for rule in RULES if f"# TYPE {rule.source} " not in text}
    assert all("hicache" in source or "retracted" in source for source in absent), absent
