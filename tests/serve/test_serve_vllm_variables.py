"""vLLM's variables through the launcher: typed, known to the installed engine, not against what it writes itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsv4_serve.engine_variables.known import vllm_names
from dsv4_serve.engine_variables.vllm_check import check_vllm_variables
from dsv4_serve.errors import UsageError
from dsv4_serve.plan import make_plan

ENVS = """
VLLM_HOST_IP: str = ""
environment_variables: dict[str, object] = {
    "VLLM_HOST_IP": lambda: "",
    "VLLM_ROCM_USE_AITER": lambda: False,
}
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python whose environment has a vLLM with two variables."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('only to be looked at')")
    (tmp_path / "vllm" / "envs.py").write_text(ENVS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "python").symlink_to(sys.executable)
    return str(tmp_path / "python")


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"VLLM_ROCM_USE_AITER": "yes"}, "VLLM_ROCM_USE_AITER='yes' (environment): accepted is 1|0 (also true|false)"),
        ({"VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "1G"}, "(environment): accepted is an integer"),
        ({"VLLM_PLUGINS": "other"}, "VLLM_PLUGINS=other (environment): accepted is a list that holds dsv4"),
        ({"VLLM_HOST_PI": "x"}, "the installed vLLM has no such variable; did you mean VLLM_HOST_IP?"),
    ],
)
def test_refusals_name_variable_origin_and_accepted_form(python: str, environ: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_vllm_variables(environ, {}, python)
    assert told in str(caught.value)


def test_ours_are_typed_and_the_engines_own_are_passed_on(python: str) -> None:
    environ = {"VLLM_ROCM_USE_AITER_MLA": "0", "VLLM_HOST_IP": "::1", "VLLM_PLUGINS": "a,dsv4", "SGLANG_X": "1"}
    found = check_vllm_variables(environ, {"VLLM_ROCM_USE_AITER": "1", "DSV4_BACKEND": "auto"}, python)
    assert found.managed == {"VLLM_ROCM_USE_AITER_MLA": False, "VLLM_ROCM_USE_AITER": True, "VLLM_PLUGINS": "a,dsv4"}
    assert found.unmanaged == ("VLLM_HOST_IP",)
    assert sorted(vllm_names(python) or ()) == ["VLLM_HOST_IP", "VLLM_ROCM_USE_AITER"]


def test_without_the_engine_nothing_is_called_unknown() -> None:
    assert check_vllm_variables({"VLLM_WHATEVER": "1"}, {}, "/no/such/python").unmanaged == ("VLLM_WHATEVER",)


def test_the_plan_of_a_vllm_profile_checks_them() -> None:
    environ = {"DSV4_PROFILE": "vllm-v4-flash-tp8", "VLLM_ROCM_USE_AITER": "0"}
    with pytest.raises(UsageError, match=r"VLLM_ROCM_USE_AITER=0 \(environment\) is overruled by the launcher's 1"):
        make_plan(environ, {})
    assert make_plan(environ | {"VLLM_ROCM_USE_AITER": "1"}, {}).variables.managed["VLLM_ROCM_USE_AITER"] is True
