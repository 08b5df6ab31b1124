"""`dsv4 serve --profile tiny-v41` with the real engine: official client, streams, tools, cached tokens, a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.profiles.load import PROFILES
from end_to_end.weather_tool import TOOLS
from serve.harness import COMMAND, Launcher

pytestmark = pytest.mark.slow
MODEL = "dsv41-tiny"
ASK: Any = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": "".join(chr(97 + (i * i) % 26) for i in range(600))},
]
CALL = (
    "Let me look.\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="get_weather">\n<｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>\n'
    "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
)
"""What a V4.1 model writes to call a tool: tags with a space, unlike V4's."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / MODEL
    write_tiny_model(directory, family="v41")
    return directory


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The profile with the engine's switch for forced tokens, and a disk tier that outlives a launcher."""
    folder = tmp_path_factory.mktemp("v41")
    profile = yaml.safe_load((PROFILES / "tiny-v41.yaml").read_text())
    profile["engine"]["extra_args"] = ["--allow-token-script"]
    (folder / "profile.yaml").write_text(yaml.safe_dump(profile))
    return ["--profile", str(folder / "profile.yaml"), "--hicache", "--hicache-disk-dir", str(folder / "disk")]


@pytest.fixture(scope="module")
def served(model: Path, options: list[str]) -> Iterator[Launcher]:
    with Launcher(model, options, command=COMMAND) as running:
        yield running


def client_of(launcher: Launcher) -> openai.OpenAI:
    return openai.OpenAI(base_url=launcher.url + "/v1", api_key="unused", max_retries=0)


def answer(launcher: Launcher) -> tuple[str, int]:
    """The text for ASK, and how many tokens of its prompt were cached."""
    with client_of(launcher) as client:
        whole = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=24, temperature=0)
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    return str(whole.choices[0].message.content), whole.usage.prompt_tokens_details.cached_tokens or 0


def test_what_is_in_effect_is_v4_1(served: Launcher) -> None:
    effective = served.engine_info()
    wanted = {"kv_dtype": "v41", "index_convention": "rne_v41", "hadamard": False, "page8": True, "rowgroup": True}
    assert effective.items() >= wanted.items()
    assert list(effective["regions"]) == ["main", "c1", "c2", "index_payload", "index_scale", "window"]
    metrics = served.http.get(served.admin + "/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(metrics)}

    def of(name: str) -> dict[str, float]:
        tiers = [sample for sample in families[name].samples if sample.labels["tier"] == "gpu"]
        return {sample.labels["region"]: sample.value for sample in tiers}

    assert of("dsv4_kv_capacity_tokens")["c2"] == 32768
    held = of("dsv4_kv_capacity_bytes")
    assert of("dsv4_kv_expected_bytes") == {region: size for region, size in held.items() if region != "main"}


def test_chat_stream_and_cached_tokens(served: Launcher) -> None:
    text, cached = answer(served)
    assert cached == 0
    assert answer(served) == (text, 512)
    with client_of(served) as client:
        stream = client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text
    assert last.usage is not None
    assert last.usage.completion_tokens == 24


def test_tool_calls_are_in_v4_1_s_tags(served: Launcher) -> None:
    with client_of(served) as client:
        script = {"dsv4_script": CALL}
        answer = client.chat.completions.create(model=MODEL, messages=ASK, tools=TOOLS, extra_body=script)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})


def test_images_are_refused(served: Launcher) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    found = served.http.post(
        served.url + "/v1/chat/completions",
        json={"model": MODEL, "messages": [{"role": "user", "content": [part]}]},
    )
    assert found.status_code == 400
    assert "this model reads text only" in found.json()["error"]["message"]


def test_a_restart_answers_from_the_disk_with_the_same_text(served: Launcher, model: Path, options: list[str]) -> None:
    """The second launcher drafts as well: its tokens are those of decoding one at a time."""
    text, _ = answer(served)
    served.__exit__(None, None, None)
    with Launcher(model, [*options, "--speculative", "ngram"], command=COMMAND) as again:
        assert answer(again) == (text, 512)
        assert 'dsv4_cached_tokens_total{tier="disk"} 512.0' in again.http.get(again.admin + "/metrics").text
