"""The SGLang adapter's HTTP side, against a server that answers as SGLang 0.5.23 does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.client import EngineClient, EngineUnreachableError
from dsv4_serve.engines.sglang_adapter import SglangAdapter
from dsv4_serve.engines.sglang_metrics import translate
from dsv4_serve.plan import make_plan
from dsv4_serve.profiles.load import load_profile
from serve.engine_answers import Answers, answering

ADAPTER = SglangAdapter(EngineRun(Path("/m"), 1))
STARTUP = {"load_weight": 60.5, "scheduler_e2e": 90.0, "cuda_graph": {"decode": 12.0, "prefill": 3.0}}


def compiled(kernels: int) -> str:
    """What the engine's /metrics says once its scheduler compiled so many kernels."""
    labels = 'replica="0.0",pp_rank="0",tp_rank="0"'
    return f"# TYPE dsv4_compile_events_total counter\ndsv4_compile_events_total{{{labels}}} {kernels}\n"


@pytest.fixture
def answers() -> Answers:
    return Answers(
        {
            "/server_info": {"served_model_name": "DeepSeek-V4-Flash", "tp_size": 4, "startup_time": STARTUP},
            "/v1/completions": {"choices": [{"text": " Paris"}], "usage": {"completion_tokens": 4}},
            "/v1/loads?include=core": {
                "loads": [
                    {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 2},
                    {"dp_rank": 1, "num_running_reqs": 1, "num_waiting_reqs": 0},
                ]
            },
            "/metrics": compiled(5),
        }
    )


@pytest.fixture
def client(answers: Answers) -> Iterator[EngineClient]:
    with answering(answers) as connected:
        yield connected


def test_ready_asks_the_served_model_for_a_real_generation(client: EngineClient, answers: Answers) -> None:
    assert asyncio.run(ADAPTER.ready(client))
    assert answers.asked[0]["model"] == "DeepSeek-V4-Flash"
    assert answers.asked[0]["max_tokens"] == 4


def test_kernels_count_as_compiled_on_live_requests_from_ready_on(client: EngineClient) -> None:
    adapter = SglangAdapter(ADAPTER.run)
    assert list(adapter.translate(compiled(5))) == []
    assert asyncio.run(adapter.ready(client))
    (family,) = adapter.translate(compiled(7))
    assert (family.name, family.samples[0].value) == ("dsv4_compile_events_after_ready", 2)


@pytest.mark.parametrize("answer", [{"choices": []}, {"choices": [{}], "usage": {"completion_tokens": 0}}])
def test_an_empty_generation_is_not_ready(client: EngineClient, answers: Answers, answer: dict[str, Any]) -> None:
    answers.by_path["/v1/completions"] = answer
    with pytest.raises(EngineUnreachableError, match="the generation gave no token"):
        asyncio.run(ADAPTER.ready(client))


def test_effective_flattens_the_start_up_phases(client: EngineClient) -> None:
    effective = asyncio.run(ADAPTER.effective(client))
    assert effective["tp_size"] == 4
    assert effective["startup_phases"] == {
        "load_weight": 60.5,
        "scheduler_e2e": 90.0,
        "cuda_graph_decode": 12.0,
        "cuda_graph_prefill": 3.0,
    }


def test_keys_and_live_states_are_not_reported(client: EngineClient, answers: Answers) -> None:
    answers.by_path["/server_info"] |= {"api_key": "sk-1", "admin_api_key": "sk-2", "internal_states": [{}]}
    assert set(asyncio.run(ADAPTER.effective(client))) == {
        "served_model_name",
        "tp_size",
        "startup_time",
        "startup_phases",
        "dsv4_plugin",
    }


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ([{"dsv4_plugin": {"hooks": {}}}, {"dsv4_plugin": {"hooks": {}}}], {"hooks": {}}),
        ([{"dsv4_plugin": {"hooks": {}}}, {}], None),
        ([], None),
    ],
)
def test_the_plugin_is_there_when_every_replica_has_it(
    client: EngineClient, answers: Answers, states: list[dict[str, Any]], found: dict[str, Any] | None
) -> None:
    answers.by_path["/server_info"]["internal_states"] = states
    effective = asyncio.run(ADAPTER.effective(client))
    assert effective["dsv4_plugin"] == found
    told = [d for d in ADAPTER.differences(load_profile("v4-flash-tp4"), effective) if d.startswith("dsv4_plugin")]
    assert bool(told) == (found is None)


def test_a_machine_beyond_the_first_has_only_its_health(client: EngineClient, answers: Answers) -> None:
    del answers.by_path["/server_info"]
    effective = asyncio.run(ADAPTER.effective(client))
    assert asyncio.run(ADAPTER.ready(client))
    assert answers.asked == []
    worker = make_plan({"DSV4_PROFILE": "v4-pro-2nodes", "DSV4_NODE_RANK": "1"}, {}).profile
    assert ADAPTER.differences(worker, effective) == []
    first = make_plan({"DSV4_PROFILE": "v4-pro-2nodes"}, {}).profile
    assert ADAPTER.differences(first, effective) == ["node_rank: asked was 0, in effect is a worker's, above 0"]


def test_no_start_up_times_are_no_phases(client: EngineClient, answers: Answers) -> None:
    answers.by_path["/server_info"]["startup_time"] = None
    assert asyncio.run(ADAPTER.effective(client))["startup_phases"] == {}


def test_an_answer_of_another_shape_is_named(client: EngineClient, answers: Answers) -> None:
    answers.by_path["/server_info"] = ["list"]
    with pytest.raises(EngineUnreachableError, match="/server_info: expected an object, found list"):
        asyncio.run(ADAPTER.effective(client))


def test_running_adds_up_replicas_and_queues(client: EngineClient) -> None:
    assert asyncio.run(ADAPTER.running(client)) == 6


def test_of_the_ranks_of_a_replica_the_fullest_tells_and_replicas_add_up() -> None:
    text = "# TYPE sglang:kv_used_tokens gauge\n"
    for dp_rank, tp_rank, used in ((0, 0, 100), (0, 1, 120), (1, 2, 7)):
        text += f'sglang:kv_used_tokens{{dp_rank="{dp_rank}",tp_rank="{tp_rank}"}} {used}\n'
    (family,) = translate(text)
    assert [(s.name, s.labels, s.value) for s in family.samples] == [
        ("dsv4_kv_used_tokens", {"region": "main", "tier": "gpu"}, 127.0)
    ]


def test_counters_of_every_priority_count() -> None:
    text = "# TYPE sglang:prompt_tokens_total counter\n"
    text += 'sglang:prompt_tokens_total{is_streaming="true",priority="1"} 5\n'
    text += 'sglang:prompt_tokens_total{is_streaming="false",priority="2"} 6\n'
    (family,) = translate(text)
    assert [(s.name, s.value) for s in family.samples] == [("dsv4_prompt_tokens_total", 11.0)]


def test_what_the_engine_does_not_export_is_absent() -> None:
    assert translate("# TYPE sglang:gen_throughput gauge\nsglang:gen_throughput 3\n") == []
