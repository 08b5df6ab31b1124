"""Our table of vLLM's variables against the pinned engine's own: names and defaults."""

from __future__ import annotations

import pytest

from dsv4_serve.engine_variables.known import vllm_names
from dsv4_serve.engine_variables.variable import Variable
from dsv4_serve.engine_variables.vllm import VLLM
from vllm import envs


def test_the_launcher_reads_the_names_that_the_engine_has() -> None:
    assert vllm_names() == frozenset(envs.environment_variables)


@pytest.mark.parametrize("variable", VLLM, ids=lambda v: v.name)
def test_the_default_is_the_engines(variable: Variable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable.name, raising=False)
    assert envs.environment_variables[variable.name]() == variable.default


@pytest.mark.parametrize("variable", [v for v in VLLM if isinstance(v.default, bool)], ids=lambda v: v.name)
def test_a_switch_is_read_as_the_engine_reads_it(variable: Variable, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("1", "0", "true", "False"):
        monkeypatch.setenv(variable.name, text)
        assert envs.environment_variables[variable.name]() == variable.parse(text, "test")
