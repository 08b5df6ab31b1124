"""The vLLM adapter's HTTP side, against a stand-in that answers at vLLM 0.33.0's routes: no vLLM runs here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.client import EngineClient, EngineUnreachableError
from dsv4_serve.engines.vllm_adapter import VllmAdapter
from dsv4_serve.engines.vllm_metrics import translate
from dsv4_serve.metrics.exposition import parse_engine_metrics
from dsv4_serve.profiles.load import load_profile
from serve.engine_answers import Answers, answering

ADAPTER = VllmAdapter(EngineRun(Path("/m"), 1))
PROFILE = load_profile("vllm-v4-flash-tp8")
METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="256",cache_dtype="fp8",enable_prefix_caching="True",engine="0",\
kv_cache_size_tokens="1000000",num_gpu_blocks="3907"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 5000.0
# TYPE vllm:prompt_tokens_cached_by_source_total counter
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="device"} 3000.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="host"} 400.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="disk"} 30.0
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="m",source="p2p"} 4.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 700.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 5.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 5.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 1.5
"""


@pytest.fixture
def answers() -> Answers:
    model = {"id": "DeepSeek-V4-Flash", "max_model_len": 131072}
    return Answers(
        {
            "/v1/models": {"data": [model]},
            "/version": {"version": "0.33.0"},
            "/metrics": METRICS,
            "/v1/completions": {"choices": [{"text": " Paris"}], "usage": {"completion_tokens": 4}},
        }
    )


@pytest.fixture
def client(answers: Answers) -> Iterator[EngineClient]:
    with answering(answers) as connected:
        yield connected


def test_ready_after_a_real_generation(client: EngineClient, answers: Answers) -> None:
    assert asyncio.run(ADAPTER.ready(client))
    answers.by_path["/v1/completions"] = {"choices": [], "usage": {"completion_tokens": 0}}
    with pytest.raises(EngineUnreachableError, match="the generation gave no token"):
        asyncio.run(ADAPTER.ready(client))
    answers.by_path["/v1/models"] = {"data": []}
    with pytest.raises(EngineUnreachableError, match="no model is served"):
        asyncio.run(ADAPTER.ready(client))


def test_what_it_runs_is_held_against_what_was_asked(client: EngineClient, answers: Answers) -> None:
    effective = asyncio.run(ADAPTER.effective(client))
    assert effective["version"] == "0.33.0"
    assert ADAPTER.differences(PROFILE, effective) == []
    answers.by_path["/metrics"] = METRICS.replace('enable_prefix_caching="True"', 'enable_prefix_caching="False"')
    effective = asyncio.run(ADAPTER.effective(client))
    assert ADAPTER.differences(PROFILE, effective) == ["enable_prefix_caching: asked was True, in effect is False"]


def test_running_counts_those_that_wait_too(client: EngineClient) -> None:
    assert asyncio.run(ADAPTER.running(client)) == 5


def values(text: str) -> dict[str, float]:
    return {
        sample.name + ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in translate(text)
        for sample in family.samples
    }


def test_metrics_in_our_names() -> None:
    found = values(METRICS)
    assert found["dsv4_kv_capacity_tokensregion=main,tier=gpu"] == 1_000_000
    assert found["dsv4_kv_used_tokensregion=main,tier=gpu"] == 250_000
    assert found["dsv4_prompt_tokens_total"] == 5000
    assert [found[f"dsv4_cached_tokens_totaltier={tier}"] for tier in ("gpu", "host", "disk")] == [3000, 400, 34]
    assert found["dsv4_generated_tokens_total"] == 700
    assert (found["dsv4_running_requests"], found["dsv4_queued_requests"]) == (3, 2)
    assert found["dsv4_retracted_requests_total"] == 1
    assert found["dsv4_time_to_first_token_seconds_bucketle=0.1"] == 4
    assert found["dsv4_time_to_first_token_seconds_sum"] == 1.5


def test_the_hits_that_vllm_counts_twice_are_counted_once() -> None:
    hits = {"prefix_cache_queries": 5000, "prefix_cache_hits": 3000, "external_prefix_cache_hits": 434}
    lines = [
        f'# TYPE vllm:{n}_total counter\nvllm:{n}_total{{engine="0",model_name="m"}} {v}.0' for n, v in hits.items()
    ]
    found = values(METRICS + "\n".join(lines) + "\n")
    assert found == values(METRICS)
    cached = sum(value for name, value in found.items() if name.startswith("dsv4_cached_tokens_total"))
    assert cached == hits["prefix_cache_hits"] + hits["external_prefix_cache_hits"]


def test_engines_of_data_parallelism_add_up() -> None:
    twice = []
    for line in METRICS.splitlines():
        copies = [] if line.startswith("#") else [line.replace('engine="0"', 'engine="1"')]
        twice += [line, *copies]
    both = values("\n".join(twice) + "\n")
    assert both["dsv4_kv_capacity_tokensregion=main,tier=gpu"] == 2_000_000
    assert both["dsv4_kv_used_tokensregion=main,tier=gpu"] == 500_000
    assert both["dsv4_prompt_tokens_total"] == 10_000
    assert both["dsv4_running_requests"] == 6


def test_the_table_of_names_allows_every_family() -> None:
    from prometheus_client import CollectorRegistry

    from dsv4_serve.metrics.exposition import exposition

    text = exposition(CollectorRegistry(), translate(METRICS)).decode()
    assert {family.name for family in parse_engine_metrics(text, "vllm")} >= {"dsv4_kv_capacity_tokens"}


def test_before_the_cache_is_sized_nothing_is_claimed() -> None:
    unsized = METRICS.replace('kv_cache_size_tokens="1000000"', 'kv_cache_size_tokens="None"')
    assert not [name for name in values(unsized) if "capacity" in name or "used" in name]
