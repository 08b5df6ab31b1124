"""The registry of variables against the pinned engine: its names, defaults, types, and what it reads besides."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglang.srt import environ

import sglang
from dsv4_serve.engine_variables.aiter import AITER
from dsv4_serve.engine_variables.known import sglang_names
from dsv4_serve.engine_variables.registry import VARIABLES
from dsv4_serve.engine_variables.variable import FRACTION, INTEGER, LIST, SWITCH, TEXT, Variable
from dsv4_serve.flags import Kind

FIELDS = {name: value for name, value in vars(environ.Envs).items() if isinstance(value, environ.EnvField)}
OF_SGLANG = [variable for variable in VARIABLES if variable not in AITER]
TYPED = [variable for variable in OF_SGLANG if variable.name in FIELDS]
RAW = [variable for variable in OF_SGLANG if variable.name not in FIELDS]
KINDS: dict[Kind, type[object]] = {SWITCH: environ.EnvBool, INTEGER: environ.EnvInt, FRACTION: environ.EnvFloat}


def test_the_launcher_reads_the_names_that_the_engine_has() -> None:
    assert sorted(sglang_names() or ()) == sorted(FIELDS)


@pytest.mark.parametrize("variable", TYPED, ids=lambda v: v.name)
def test_type_and_default_are_the_engines(variable: Variable) -> None:
    field = FIELDS[variable.name]
    assert isinstance(field, KINDS.get(variable.kind, environ.EnvStr))
    default = field.default() if callable(field.default) else field.default
    assert str(variable.default) == str(default)


def test_what_is_read_past_the_engines_registry_is_in_ours() -> None:
    """Variables that a list of `sglang.srt.environ` alone would call unknown."""
    root = Path(sglang.__file__).parent
    sources = [root / "kernels" / "ops", root / "srt"]
    text = "".join(path.read_text() for source in sources for path in source.rglob("*.py"))
    assert {"SGLANG_ROPE_BATCHED", "SGLANG_DSV4_Q8KV8_PREFILL", "SGLANG_DSV4_GROUPED_ASM"} <= {v.name for v in RAW}
    assert [variable.name for variable in RAW if variable.name not in text] == []
    assert all(variable.kind in (SWITCH, TEXT, LIST) for variable in RAW)


def test_every_switch_of_the_hip_index_path_is_in_ours() -> None:
    ours = {variable.name for variable in VARIABLES}
    theirs = [name for name in FIELDS if name.startswith(("SGLANG_HIP_", "SGLANG_DSV4_", "SGLANG_OPT_DSV4_"))]
    assert sorted(set(theirs) - ours) == []
