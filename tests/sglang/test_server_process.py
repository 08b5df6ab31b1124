"""The real SGLang 0.5.23 server behind `dsv4 serve`: its HIP path with the FP4 index, on a simulated gfx950.

One start and one restart serve all tests, in the order of this file. What a CPU cannot run is listed in
`simulated_server/stand_ins.py`; queries, keys, scores and schedules of the index come from our kernels, chosen by the
plugin; the weights are the committed tiny DeepSeek-V4's, so the answers are sentences.
"""

from __future__ import annotations

import json
import os
import random
import signal
import string
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.sglang_adapter import SglangAdapter
from dsv4_serve.profiles.load import load_profile
from dsv4_serve.watch import WATCH_SECONDS
from serve.harness import MODEL, Launcher, chat_body, wait_until
from simulated_server import running

pytestmark = pytest.mark.slow

ANSWER_SECONDS = 600.0
LONG = 300
"""Tokens of a prompt, one a character: a whole page of 256 that a second request finds, and a rest."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Launcher]:
    with running.start(directory, ["--drain-seconds", "300"]) as launcher:
        launcher.http.timeout = httpx.Timeout(ANSWER_SECONDS)
        yield running.wait_until_ready(launcher)


def metrics(server: Launcher) -> dict[str, float]:
    return {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(server.get("/metrics").text)
        for sample in family.samples
    }


def complete(server: Launcher, prompt: str, tokens: int = 4, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0} | fields
    answer = server.http.post(server.url + "/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


class Stream:
    """A chat answer that is being read; `text` is whole once `join` returned."""

    def __init__(self, server: Launcher, prompt: str, tokens: int) -> None:
        self.url = server.url + "/v1/chat/completions"
        fields = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True}
        self.body = chat_body(prompt, max_tokens=tokens, **fields)
        self.text = ""
        self.started = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with (
            httpx.Client(timeout=ANSWER_SECONDS, trust_env=False) as client,
            client.stream("POST", self.url, json=self.body) as answer,
        ):
            for chunk in answer.iter_text():
                self.text += chunk
                if '"content"' in self.text:
                    self.started.set()

    def begun(self) -> Stream:
        assert self.started.wait(ANSWER_SECONDS)
        return self

    def join(self) -> Stream:
        self.thread.join(ANSWER_SECONDS)
        assert not self.thread.is_alive()
        return self

    def events(self) -> list[dict[str, Any]]:
        lines = [line.removeprefix("data: ") for line in self.text.splitlines() if line.startswith("data: {")]
        return [json.loads(line) for line in lines]

    def content(self) -> str:
        choices = [choice for event in self.events() for choice in event.get("choices", [])]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_it_is_ready_as_asked_and_the_plugin_serves_the_index(server: Launcher) -> None:
    effective = server.engine_info()
    assert effective["device"] == "cuda"
    assert effective["page_size"] == 256
    assert effective["enable_deepseek_v4_fp4_indexer"] is True
    plugin = effective["dsv4_plugin"]
    index = {name: state for name, state in plugin["hooks"].items() if "fp4_indexer_hip" in name}
    assert index
    assert set(index.values()) == {"attached"}
    served = {symbol["operation"]: symbol["served_by"] for symbol in plugin["index_path"]["symbols"]}
    assert served["quantize_query"] == served["write_index_keys"] == served["paged_logits"] == "reference"
    assert "Using DeepseekV4HipRadixBackend" in server.text
    assert server.get("/startupz").json()["started"]
    assert metrics(server)["dsv4_requested_not_effective"] == 0


def test_nothing_is_computed_while_nobody_asks(server: Launcher) -> None:
    """The launcher looks every two seconds whether it lives; SGLang's own /health would generate a token each time."""

    def launches() -> float:
        return sum(value for name, value in metrics(server).items() if name.startswith("dsv4_indexer_launches_total"))

    complete(server, "anything")
    before = 0.0
    while (seen := launches()) != before:
        # The engine publishes its counts once a second.
        before = seen
        time.sleep(2.5)
    time.sleep(3 * WATCH_SECONDS)
    assert launches() == before


def test_a_value_that_is_not_in_effect_is_named(server: Launcher, directory: Path) -> None:
    """What this server runs, held against a profile that asks for something else."""
    profile = load_profile(str(directory / running.FILE))
    adapter = SglangAdapter(EngineRun(directory, 1))
    named = profile.model_copy(update={"model": profile.model.model_copy(update={"path": str(directory / MODEL)})})
    assert adapter.differences(named, server.engine_info()) == []
    more = named.model_copy(update={"hicache": False, "tp": 2})
    assert adapter.differences(more, server.engine_info()) == [
        "tp_size: asked was 2, in effect is 1",
        "enable_hierarchical_cache: asked was False, in effect is True",
    ]


def test_a_chat_streams_the_models_words(server: Launcher) -> None:
    before = metrics(server)
    stream = Stream(server, "Hello", 12).join()
    assert stream.content() == "Hello! Ask m"
    assert stream.text.endswith("data: [DONE]\n\n")
    usage = stream.events()[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (9, 12)
    after = metrics(server)
    assert after["dsv4_prompt_tokens_total"] - before["dsv4_prompt_tokens_total"] == 9
    assert after["dsv4_generated_tokens_total"] - before["dsv4_generated_tokens_total"] == 12
    first = "dsv4_time_to_first_token_seconds_count"
    assert after[first] - before[first] == 1
    between = "dsv4_inter_token_latency_seconds_count"
    assert after[between] - before.get(between, 0) == 11


def test_a_completion_streams_what_it_answers_whole(server: Launcher) -> None:
    whole = complete(server, "Records:", 8)["choices"][0]["text"]
    body = {"model": MODEL, "prompt": "Records:", "max_tokens": 8, "temperature": 0, "stream": True}
    answer = server.http.post(server.url + "/v1/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert len(events) > 1
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == whole
    assert answer.text.endswith("data: [DONE]\n\n")


def test_a_record_far_outside_the_window_is_found_through_the_index(server: Launcher) -> None:
    """Sixty records of eight tokens: the one that is asked for stands some 450 tokens back, the window has 128."""
    dice = random.Random(3)
    records = {"".join(dice.choices(string.ascii_lowercase, k=3)): f"{dice.randrange(1000):03}" for _ in range(60)}
    key = list(records)[4]
    text = "Records:\n" + "".join(f"{name}:{value}\n" for name, value in records.items())
    answer = server.chat(f"{text}\nWhat is the value of {key}?", max_tokens=24, temperature=0).json()
    assert answer["usage"]["prompt_tokens"] > 500
    assert records[key] in answer["choices"][0]["message"]["content"]


def test_a_repeated_prompt_is_found_by_whole_pages(server: Launcher) -> None:
    before = metrics(server)
    prompt = "".join(chr(ord("a") + (7 * at) % 26) for at in range(LONG))
    cold, warm = (complete(server, prompt) for _ in range(2))
    assert [answer["usage"]["prompt_tokens"] for answer in (cold, warm)] == [LONG, LONG]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (cold, warm)]
    assert cached == [0, 256]
    assert cold["choices"][0]["text"] == warm["choices"][0]["text"]
    after = metrics(server)
    assert after["dsv4_prompt_tokens_total"] - before["dsv4_prompt_tokens_total"] == 2 * LONG
    tier = "dsv4_cached_tokens_total tier=gpu"
    assert after[tier] - before.get(tier, 0) == 256


def test_the_self_test_asks_it_by_url(server: Launcher, directory: Path) -> None:
    """Warm answers are the cold ones within what SGLang's sums allow."""
    done = running.command(directory, "selftest", "--url", server.url, "--probe", "cache-1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 warm replays within" in done.stdout


def test_pools_and_counts_are_those_of_the_server(server: Launcher) -> None:
    # SGLang refreshes its gauges when a batch starts: the pages of the long prompt stay behind, and are nobody's.
    complete(server, "Hello")
    found = metrics(server)
    assert found["dsv4_kv_capacity_tokens region=main tier=gpu"] == running.POOL_TOKENS
    assert found["dsv4_kv_capacity_tokens region=window tier=gpu"] == 1536
    assert found["dsv4_kv_evictable_tokens region=main tier=gpu"] >= 256
    assert found["dsv4_kv_used_tokens region=main tier=gpu"] >= found["dsv4_kv_evictable_tokens region=main tier=gpu"]
    assert (found["dsv4_running_requests"], found["dsv4_queued_requests"]) == (0, 0)
    # HiCache wrote the page through to the host, where there is room for twice the device's tokens.
    assert found["dsv4_kv_capacity_tokens region=main tier=host"] == 2 * running.POOL_TOKENS
    assert found["dsv4_kv_capacity_tokens region=index_payload tier=host"] == 2 * running.POOL_TOKENS / 4
    assert found["dsv4_kv_used_tokens region=main tier=host"] >= 256
    for op in ("quantize_query", "write_index_keys", "paged_logits"):
        for phase in ("prefill", "decode"):
            # Two layers of the model have an index.
            assert found[f"dsv4_indexer_launches_total backend=reference op={op} phase={phase}"] >= 2
    assert found["dsv4_kv_capacity_tokens region=index_payload tier=gpu"] == running.POOL_TOKENS / 4
    assert found["dsv4_compile_events_after_ready_total"] == 0
    assert found["dsv4_nonfinite_logits_total"] == 0
    assert found["dsv4_engine_up"] == 1
    assert found["dsv4_engine_metrics_refused_total"] == 0


def test_an_engine_that_is_killed_tells_its_streams_and_is_started_again(server: Launcher) -> None:
    stream = Stream(server, "Hello", 2000).begun()
    os.kill(server.engine_pid(), signal.SIGKILL)
    wait_until(lambda: server.get("/readyz").status_code == 503, "not ready any more")
    assert server.get("/livez").status_code == 200
    stream.join()
    assert '"code": "engine_lost"' in stream.text
    assert not stream.text.endswith("data: [DONE]\n\n")
    running.wait_until_ready(server)
    assert metrics(server)["dsv4_engine_restarts_total cause=killed"] == 1
    assert complete(server, "Hello")["usage"]["completion_tokens"] == 4


def test_sigterm_lets_a_stream_finish_and_ends_with_0(server: Launcher) -> None:
    stream = Stream(server, "Hello", 40).begun()
    server.signal(signal.SIGTERM)
    wait_until(lambda: server.get("/readyz").status_code == 503, "draining")
    assert server.chat().status_code == 503
    stream.join()
    assert stream.events()[-1]["usage"]["completion_tokens"] == 40
    assert stream.text.endswith("data: [DONE]\n\n")
    assert server.process.wait(ANSWER_SECONDS) == 0


def test_a_start_that_gives_something_else_fails_with_both_values(tmp_path: Path) -> None:
    """The profile asks for 4096 tokens of context, and a later word of the command gives the engine 2048."""
    with running.start(tmp_path, words=["--context-length=2048"]) as launcher:
        assert launcher.process.wait(running.START_PATIENCE) == 1
    told = "the engine does not run what was asked for: context_length: asked was 4096, in effect is 2048"
    assert told in launcher.text
