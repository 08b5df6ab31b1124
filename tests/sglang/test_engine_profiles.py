"""Every SGLang profile of the project, parsed and resolved by the pinned engine itself on the simulated machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import engine_context
from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.sglang_adapter import SglangAdapter
from dsv4_serve.profiles.load import load_profile, profile_names
from dsv4_serve.profiles.schema import Profile
from published_models import BY_NAME

# Only a scheduler that runs can report it.
PLUGIN: dict[str, Any] = {"dsv4_plugin": {"hooks": {}}}
PROFILES = [p for p in (load_profile(name) for name in profile_names()) if p.engine.name == "sglang"]


@contextmanager
def started(profile: Profile, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SglangAdapter, Any]]:
    """The adapter of a profile, and what SGLang makes of its command and environment."""
    model = engine_context.write_model(directory, **BY_NAME[profile.model.name])
    adapter = SglangAdapter(EngineRun(model, 30000))
    for name, value in adapter.environment(profile).items():
        monkeypatch.setenv(name, value)
    _, serve, *line = adapter.command(profile)
    assert serve == "serve"
    with engine_context.engine_of(line) as arguments:
        yield adapter, arguments


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: p.name)
def test_the_engine_resolves_what_the_profile_asks_for(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(profile, tmp_path, monkeypatch) as (adapter, arguments):
        effective = arguments.resolved_dict() | PLUGIN
        assert adapter.differences(profile, effective) == []
        assert effective["page_size"] == 256
        assert effective["chunked_prefill_size"] == 8192
        assert effective["reasoning_parser"] == ("deepseek-v41" if profile.kv_layout == "v41" else "deepseek-v4")


def test_a_value_that_did_not_take_effect_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = load_profile("v4-flash-tp4")
    with started(profile, tmp_path, monkeypatch) as (adapter, arguments):
        effective = arguments.resolved_dict() | PLUGIN | {"enable_deepseek_v4_fp4_indexer": False}
        del effective["tp_size"]
        assert adapter.differences(profile, effective) == [
            "tp_size: asked was 4, in effect is not reported",
            "enable_deepseek_v4_fp4_indexer: asked was True, in effect is False",
        ]
