"""Variables of SGLang and AITER: known, typed, and not undone by another setting."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dsv4_serve.engine_variables.check import EngineVariables, check_variables
from dsv4_serve.engine_variables.conflicts import ARCH, CONFLICTS, NOTES
from dsv4_serve.engine_variables.known import aiter_names, sglang_names
from dsv4_serve.engine_variables.registry import BY_NAME, VARIABLES
from dsv4_serve.engine_variables.variable import NAMESPACES
from dsv4_serve.engine_variables.vllm import VLLM
from dsv4_serve.errors import UsageError
from dsv4_serve.flags import BY_NAME as TOGGLES
from dsv4_serve.flags import Conflict, Value
from dsv4_serve.plan import make_plan

REGISTRY = """
class EnvField: ...

class Envs:
    SGLANG_USE_AITER = EnvBool(False)
    SGLANG_TORCH_PROFILER_DIR: EnvField = EnvStr("/tmp")
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python whose environment has an SGLang with two variables of its own."""
    package = tmp_path / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('only to be looked at')")
    (package / "srt" / "environ.py").write_text(REGISTRY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (package / "srt" / "raw.py").write_text("os.environ.get('SGLANG_READ_RAW')")
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    return str(link)


def check(environ: dict[str, str], python: str | None = None, **given: Any) -> EngineVariables:
    settings: dict[str, Any] = {"built": {}, "words": (), "toggles": {}, "arch": "gfx950", "python": python} | given
    return check_variables(environ, **settings)


def test_names_are_unique_and_in_the_engines_namespaces() -> None:
    assert len(BY_NAME) == len(VARIABLES) + len(VLLM)
    assert all(variable.name.startswith(NAMESPACES) for variable in VARIABLES)
    assert all(variable.name.startswith("VLLM_") for variable in VLLM)


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda v: v.name)
def test_a_default_is_a_value_of_its_own_kind(variable: Any) -> None:
    if variable.default is not None:
        text = str(int(variable.default)) if isinstance(variable.default, bool) else str(variable.default)
        assert variable.default == "" or variable.parse(text, "test") == variable.default


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({"SGLANG_USE_AITER": "maybe"}, "SGLANG_USE_AITER='maybe' (environment): accepted is 1|0 (also true|false"),
        ({"SGLANG_DSV4_FP4_LOGITS_BUDGET_MB": "2G"}, "(environment): accepted is an integer"),
        ({"SGLANG_DSV4_COMPRESSED_KV_LAYOUT": "fp2"}, "(environment): accepted is auto|fp8|fp4"),
        ({"SGLANG_PLUGINS": "other"}, "SGLANG_PLUGINS=other (environment): accepted is a list that holds dsv4"),
        ({"SGLANG_PLUGINS": "a, dsv4"}, "accepted is names, separated by commas"),
        (
            {"SGLANG_USE_AITR": "1"},
            "SGLANG_USE_AITR (environment): the installed SGLang has no such variable; did you mean SGLANG_USE_AITER?",
        ),
    ],
)
def test_refusals_name_variable_origin_and_accepted_form(python: str, environ: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(environ, python)
    assert told in str(caught.value)
    assert caught.value.exit_code == 2


def test_ours_are_typed_and_the_engines_own_are_passed_on(python: str) -> None:
    found = check({"SGLANG_USE_AITER": "yes", "SGLANG_TORCH_PROFILER_DIR": "/d", "SGLANG_PLUGINS": "a,dsv4"}, python)
    assert found.managed == {"SGLANG_USE_AITER": True, "SGLANG_PLUGINS": "a,dsv4"}
    assert found.unmanaged == ("SGLANG_TORCH_PROFILER_DIR",)


def test_a_variable_that_the_engine_reads_past_its_registry_is_its_own(python: str) -> None:
    assert check({"SGLANG_READ_RAW": "1"}, python).unmanaged == ("SGLANG_READ_RAW",)


def test_other_names_are_nobodys_business(python: str) -> None:
    assert check({"HOME": "/root", "HIP_VISIBLE_DEVICES": "0"}, python) == EngineVariables()


def test_names_of_an_engine_are_read_without_importing_it(python: str) -> None:
    assert sorted(sglang_names(python) or ()) == ["SGLANG_TORCH_PROFILER_DIR", "SGLANG_USE_AITER"]
    assert sglang_names("/no/such/python") is None


def test_without_the_engine_nothing_is_called_unknown() -> None:
    assert check({"SGLANG_WHATEVER": "1"}, "/no/such/python").unmanaged == ("SGLANG_WHATEVER",)


def test_a_value_that_the_launcher_overrules_is_refused() -> None:
    built = {"SGLANG_HIP_FP4_INDEXER_ROWGROUP": "1", "SGLANG_USE_AITER": "1"}
    assert check({"SGLANG_HIP_FP4_INDEXER_ROWGROUP": "true"}, built=built).managed["SGLANG_USE_AITER"] is True
    with pytest.raises(UsageError, match=r"ROWGROUP=0 \(environment\) is overruled .* 1: set DSV4_ROWGROUP instead"):
        check({"SGLANG_HIP_FP4_INDEXER_ROWGROUP": "0"}, built=built)
    with pytest.raises(UsageError, match=r"SGLANG_USE_AITER=0 .* 1: change the profile's env instead"):
        check({"SGLANG_USE_AITER": "0"}, built=built)


def settings_of(pair: Conflict) -> dict[str, Any]:
    """Arguments of `check` in which both sides of a pair hold."""
    environ: dict[str, str] = {}
    toggles: dict[str, Value] = {}
    words: list[str] = []
    arch = "gfx950"
    for name, value in (pair.when, pair.against):
        if name == ARCH:
            arch = str(value)
        elif name.startswith("--"):
            words += [name] if value is True else [name, str(value)]
        elif name in TOGGLES:
            toggles[name] = value
        else:
            environ[name] = str(int(value)) if isinstance(value, bool) else str(value)
    return {"environ": environ, "toggles": toggles, "words": words, "arch": arch}


@pytest.mark.parametrize("pair", CONFLICTS, ids=lambda c: f"{c.when[0]}={c.when[1]}-{c.against[0]}")
def test_every_declared_conflict_is_refused(pair: Conflict) -> None:
    with pytest.raises(UsageError, match="conflicts with") as caught:
        check(**settings_of(pair))
    assert pair.why in str(caught.value)


# What excludes a setting by being off does so from the start.
TWO_SIDED = [pair for pair in CONFLICTS if pair.against[1] is not False]


@pytest.mark.parametrize("pair", TWO_SIDED, ids=lambda c: f"{c.when[0]}={c.when[1]}-{c.against[0]}")
def test_one_side_of_a_conflict_alone_is_allowed(pair: Conflict) -> None:
    alone = settings_of(Conflict(pair.when, pair.when, "")) | {"arch": "sm90"}
    assert check(**alone) is not None


@pytest.mark.parametrize("pair", NOTES, ids=lambda c: f"{c.when[0]}-{c.against[0]}")
def test_what_is_less_than_it_sounds_is_told(pair: Conflict) -> None:
    found = check(**settings_of(pair))
    assert any(pair.why in note for note in found.notes)


def test_torchs_top_k_must_be_unfused() -> None:
    words = ["--dsa-topk-backend", "torch"]
    with pytest.raises(UsageError, match="SGLANG_DSA_FUSE_TOPK=1 conflicts with --dsa-topk-backend torch"):
        check({}, words=words)
    assert check({"SGLANG_DSA_FUSE_TOPK": "0"}, words=words).managed == {"SGLANG_DSA_FUSE_TOPK": False}


def test_names_of_aiter_are_those_that_the_images_build_listed(tmp_path: Path) -> None:
    listed = tmp_path / "list.json"
    assert aiter_names(listed) is None
    listed.write_text('["AITER_REBUILD", "AITER_NEW_ONE"]')
    assert sorted(aiter_names(listed) or ()) == ["AITER_NEW_ONE", "AITER_REBUILD"]
    assert check({"AITER_NEW_ONE": "1"}, aiter_list=listed).unmanaged == ("AITER_NEW_ONE",)
    with pytest.raises(UsageError, match=r"AITER_NEW_TWO .*installed AITER has no such .*did you mean AITER_NEW_ONE\?"):
        check({"AITER_NEW_TWO": "1"}, aiter_list=listed)
    assert check({"FLYDSL_SOMETHING": "1"}, aiter_list=listed).unmanaged == ("FLYDSL_SOMETHING",)


def test_a_plan_lists_what_is_passed_on_and_refuses_what_is_undone(python: str) -> None:
    engine = {"DSV4_PROFILE": "v4-flash-tp4", "DSV4_ENGINE_PYTHON": python}
    plan = make_plan(engine | {"SGLANG_TORCH_PROFILER_DIR": "/d"}, {})
    assert plan.describe()["unmanaged"] == ["SGLANG_TORCH_PROFILER_DIR"]
    assert plan.remarks == ["SGLANG_TORCH_PROFILER_DIR: not one of ours, passed on to the engine as it is"]
    with pytest.raises(UsageError, match="overruled"):
        make_plan(engine | {"SGLANG_HIP_DSV4_C4_INDEXER_ROWGROUP": "1"}, {})
    with pytest.raises(UsageError, match=r"V4 has no engram tables"):
        make_plan(engine | {"SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": "1"}, {})


def test_the_embedded_engine_has_no_such_variables() -> None:
    assert make_plan({"SGLANG_WHATEVER": "1"}, {}).describe()["unmanaged"] == []
