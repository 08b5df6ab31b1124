"""The two moments of a scheduler's start, on SGLang's own classes: before weights load, and before it serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.model_executor.model_runner import ModelRunner

import engine_context
import plugin_world
from dsv4_kernels import backends
from dsv4_serve.engines.hooks import Hook, HookError
from dsv4_serve.engines.sglang import plugin, routes, start

FP4 = "--enable-deepseek-v4-fp4-indexer"


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Runners whose weights were loaded; loading and the rest of a scheduler's start are left out."""
    seen: list[Any] = []
    monkeypatch.setattr(ModelRunner, "load_model", lambda runner: seen.append(runner))
    monkeypatch.setattr(Scheduler, "__init__", lambda scheduler: None)
    with plugin_world.aiter():
        yield seen
    routes.deactivate()
    backends.activate("cpu", "reference")


def runner(directory: Path, *flags: str, **changes: Any) -> Any:
    model = engine_context.write_model(directory, **changes)
    with engine_context.engine(model, *flags) as arguments:
        return SimpleNamespace(model_config=ModelConfig.from_server_args(arguments), device="cpu")


def load(directory: Path, made: Any, *flags: str) -> None:
    with engine_context.engine(directory, *flags), plugin_world.hooks():
        ModelRunner.load_model(made)


def test_kernels_are_chosen_before_weights_load(loaded: list[Any], tmp_path: Path) -> None:
    made = runner(tmp_path, FP4)
    load(tmp_path, made, FP4)
    assert loaded == [made]
    chosen = routes.current()
    assert chosen is not None
    assert chosen.path.c4
    load(tmp_path, made, FP4)
    assert routes.current() is chosen, "a draft model's runner decides again"


def test_no_weight_is_loaded_where_aiter_was_asked_for_and_lacks_a_symbol(
    loaded: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(routes.BACKEND, "aiter")
    made = runner(tmp_path, FP4)
    with pytest.raises(HookError, match="missing aiter:rope_rotate_activation"):
        load(tmp_path, made, FP4)
    assert loaded == []


def test_no_weight_of_a_model_without_kernels_is_loaded(loaded: list[Any], tmp_path: Path) -> None:
    made = runner(tmp_path, FP4, index_n_heads=8)
    with pytest.raises(HookError, match="index_n_heads=8: accepted is a multiple of 16 from 16 to 64"):
        load(tmp_path, made, FP4)
    assert loaded == []


def test_a_model_without_an_fp4_index_loads_as_ever(loaded: list[Any], tmp_path: Path) -> None:
    made = runner(tmp_path, index_n_heads=8)
    load(tmp_path, made)
    assert loaded == [made]
    assert routes.current() is None


def test_a_scheduler_with_the_index_path_serves_only_with_every_needed_hook(
    loaded: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = Hook("sglang.srt.never_imported", "f", lambda f: lambda: f, "a test", needed=True)
    scheduler = object.__new__(Scheduler)
    load(tmp_path, runner(tmp_path, FP4), FP4)
    monkeypatch.setattr(plugin, "declared", lambda: list(start.HOOKS))
    with plugin_world.hooks():
        Scheduler.__init__(scheduler)
    monkeypatch.setattr(plugin, "declared", lambda: [*start.HOOKS, never])
    with plugin_world.hooks(), pytest.raises(HookError, match=r"sglang\.srt\.never_imported:f is not hooked"):
        Scheduler.__init__(scheduler)
    routes.deactivate()
    with plugin_world.hooks():
        Scheduler.__init__(scheduler)


def test_the_report_is_part_of_the_internal_state(loaded: list[Any], tmp_path: Path) -> None:
    load(tmp_path, runner(tmp_path, FP4), FP4)
    inner = SimpleNamespace(get_internal_state=lambda request: SimpleNamespace(internal_state={"pp": 1}))
    with plugin_world.hooks() as hooks:
        answer = Scheduler.get_internal_state(SimpleNamespace(internal_state=inner), None)
        told = answer.internal_state["dsv4_plugin"]
        assert told["hooks"] == hooks.states()
    assert answer.internal_state["pp"] == 1
    assert told["index_path"]["operations"]["paged_logits"]["selected"] == "reference"
    assert told["register_seconds"] >= 0
