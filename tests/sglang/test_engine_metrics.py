"""What SGLang's own collectors export, translated to the project's families."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY, generate_latest

import engine_context
from dsv4_serve.engines import sglang_metrics

FLAGS = ("--enable-deepseek-v4-fp4-indexer", "--enable-metrics", "--enable-hierarchical-cache", "--hicache-ratio", "2")
RANK = {"model_name": "m", "engine_type": "unified", "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0", "priority": ""}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The exposition of a scheduler that ran 3 requests of 600 tokens, 512 of each cached, on two replicas."""
    from sglang.srt.observability.metrics_collector import (
        QueueCount,
        SchedulerMetricsCollector,
        SchedulerStats,
        TokenizerMetricsCollector,
    )

    before = set(REGISTRY._collector_to_names)
    with engine_context.engine(engine_context.write_model(tmp_path_factory.mktemp("m")), *FLAGS) as arguments:
        scheduler = SchedulerMetricsCollector(RANK | {"dp_rank": "0"}, arguments, enable_hierarchical_cache=True)
        for dp_rank in ("0", "1"):
            scheduler.labels = RANK | {"dp_rank": dp_rank}
            stats = SchedulerStats(num_running_reqs=QueueCount(3, {1: 2, 2: 1}), num_queue_reqs=QueueCount(1))
            stats.kv_used_tokens, stats.kv_evictable_tokens = 1800, 2000
            stats.hicache_host_used_tokens, stats.hicache_host_total_tokens = 512, 32768
            scheduler.max_total_num_tokens.labels(**scheduler.labels).set(16384)
            scheduler.max_total_num_tokens_swa.labels(**scheduler.labels).set(1536)
            scheduler.log_stats(stats)
        requests = {"model_name": "m", "engine_type": "unified"}
        tokenizer = TokenizerMetricsCollector(arguments, requests)
        for stream in (True, False, True):
            tokenizer.observe_time_to_first_token(requests, 0.25, stream=stream)
            tokenizer.observe_one_finished_request(
                labels=requests,
                prompt_tokens=600,
                generation_tokens=32,
                cached_tokens=512,
                cached_tokens_details={"device": 256, "host": 256},
                e2e_latency=1.0,
                has_grammar=False,
                is_streaming=stream,
            )
        yield generate_latest(REGISTRY).decode()
    for collector in set(REGISTRY._collector_to_names) - before:
        REGISTRY.unregister(collector)


@pytest.fixture(scope="module")
def values(exported: str) -> dict[str, float]:
    return {
        sample.name + "".join(f" {k}={v}" for k, v in sorted(sample.labels.items())): sample.value
        for family in sglang_metrics.translate(exported)
        for sample in family.samples
    }


def test_pools_of_two_replicas_add_up(values: dict[str, float]) -> None:
    assert values["dsv4_kv_capacity_tokens region=main tier=gpu"] == 2 * 16384
    assert values["dsv4_kv_capacity_tokens region=window tier=gpu"] == 2 * 1536
    assert values["dsv4_kv_capacity_tokens region=main tier=host"] == 2 * 32768
    assert values["dsv4_kv_used_tokens region=main tier=gpu"] == 2 * (1800 + 2000)
    assert values["dsv4_kv_used_tokens region=main tier=host"] == 2 * 512
    assert (values["dsv4_running_requests"], values["dsv4_queued_requests"]) == (6, 2)


def test_tokens_of_streaming_and_other_requests_add_up_by_tier(values: dict[str, float]) -> None:
    assert values["dsv4_prompt_tokens_total"] == 3 * 600
    assert values["dsv4_generated_tokens_total"] == 3 * 32
    assert values["dsv4_cached_tokens_total tier=gpu"] == 3 * 256
    assert values["dsv4_cached_tokens_total tier=host"] == 3 * 256
    assert "dsv4_cached_tokens_total tier=disk" not in values


def test_latencies_keep_their_buckets(values: dict[str, float]) -> None:
    assert values["dsv4_time_to_first_token_seconds_count"] == 3
    assert values["dsv4_time_to_first_token_seconds_sum"] == pytest.approx(0.75)
    assert values["dsv4_time_to_first_token_seconds_bucket le=+Inf"] == 3
    assert values["dsv4_time_to_first_token_seconds_bucket le=0.2"] == 0


def test_every_rule_reads_a_family_that_sglang_has(exported: str) -> None:
    for rule in sglang_metrics.RULES:
        assert f"# TYPE {rule.source} " in exported, rule.source
