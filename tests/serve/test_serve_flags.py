"""Toggles: parsing, precedence, origins, conflicts, and that each one has an effect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.errors import PreflightError, UsageError
from dsv4_serve.flags import BY_NAME, CONFLICTS, FLAGS, Conflict, Value
from dsv4_serve.plan import make_plan
from dsv4_serve.resolve import Resolved, resolve

ADAPTER = EmbeddedAdapter(EngineRun(Path("/models/tiny"), 1))


def resolved(**toggles: str) -> Resolved:
    return resolve({}, {}, toggles)


def test_precedence_and_origin() -> None:
    profile: dict[str, Value] = {"DSV4_INDEXER_DTYPE": "fp8", "DSV4_TP": 2, "DSV4_KV_LAYOUT": "v4"}
    environ = {"DSV4_INDEXER_DTYPE": "bf16", "DSV4_TP": "4", "HOME": "/root"}
    outcome = resolve(profile, environ, {"DSV4_TP": "8"})
    got = {name: (outcome[name], outcome.settings[name].origin) for name in outcome.settings}
    assert got["DSV4_TP"] == (8, "command line")
    assert got["DSV4_INDEXER_DTYPE"] == ("bf16", "environment")
    assert got["DSV4_KV_LAYOUT"] == ("v4", "profile")
    assert got["DSV4_EP"] == (1, "default")
    assert list(outcome.settings) == [flag.name for flag in FLAGS]


@pytest.mark.parametrize(
    ("environ", "cli", "message"),
    [
        (
            {"DSV4_INDEXER_DTPE": "fp8"},
            {},
            "DSV4_INDEXER_DTPE (environment): no such toggle; did you mean DSV4_INDEXER_DTYPE?",
        ),
        ({"DSV4_TP": "two"}, {}, "DSV4_TP='two' (environment): accepted is an integer >= 1"),
        ({"DSV4_TP": "0"}, {}, "DSV4_TP='0' (environment): accepted is an integer >= 1"),
        (
            {},
            {"DSV4_INDEXER_DTYPE": "fp5"},
            "DSV4_INDEXER_DTYPE='fp5' (command line, --indexer-dtype): accepted is fp4|fp8|bf16",
        ),
        (
            {"DSV4_HICACHE": "maybe"},
            {},
            "DSV4_HICACHE='maybe' (environment): accepted is 1|0 (also true|false, yes|no, on|off)",
        ),
        ({"DSV4_API_KEYS_FILE": ""}, {}, "DSV4_API_KEYS_FILE='' (environment): accepted is a path"),
        (
            {"DSV4_PAGE8": "1"},
            {},
            "DSV4_PAGE8=1 (environment) conflicts with DSV4_KV_LAYOUT=v4 (default): "
            "pages of 8 index keys exist for V4.1 only",
        ),
    ],
)
def test_refusals_name_value_origin_and_accepted_form(
    environ: Mapping[str, str], cli: Mapping[str, str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve({}, environ, cli)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_a_name_near_to_nothing_lists_what_is_known() -> None:
    with pytest.raises(UsageError, match=r"DSV4_ZZQQXX .*known are DSV4_PROFILE, .*DSV4_API_KEYS_FILE"):
        resolve({}, {"DSV4_ZZQQXX": "1"}, {})


@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12))
def test_only_registered_names_pass(suffix: str) -> None:
    name = f"DSV4_{suffix}"
    if name in BY_NAME:
        return
    with pytest.raises(UsageError, match="no such toggle"):
        resolve({}, {name: "1"}, {})


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_every_form_of_true(text: str) -> None:
    assert resolved(DSV4_HICACHE=text)["DSV4_HICACHE"] is True


@pytest.mark.parametrize("text", ["0", "false", "No", "OFF"])
def test_every_form_of_false(text: str) -> None:
    assert resolve({"DSV4_HICACHE": True}, {}, {"DSV4_HICACHE": text})["DSV4_HICACHE"] is False


def test_defaults_are_free_of_conflicts_and_well_typed() -> None:
    outcome = resolve({}, {}, {})
    for flag in FLAGS:
        assert outcome[flag.name] == flag.default
        if flag.default is not None:
            text = str(int(flag.default)) if isinstance(flag.default, bool) else str(flag.default)
            assert flag.parse(text, "test") == flag.default


@pytest.mark.parametrize("conflict", CONFLICTS, ids=lambda c: f"{c.when[0]}-{c.against[1]}")
def test_every_declared_conflict_is_refused(conflict: Conflict) -> None:
    with pytest.raises(UsageError, match="conflicts with"):
        resolve(dict([conflict.when, conflict.against]), {}, {})


COMMAND_TOGGLES = {
    "DSV4_MODEL": "/models/other",
    "DSV4_INDEXER_DTYPE": "fp8",
    "DSV4_KV_LAYOUT": "bf16",
    "DSV4_HICACHE": "1",
    "DSV4_ROWGROUP": "1",
    "DSV4_KERNELS_DIR": "/opt/kernels",
}
REFUSED_TOGGLES = {
    "DSV4_TP": "2",
    "DSV4_EP": "2",
    "DSV4_DP": "2",
    "DSV4_SPECULATIVE": "eagle",
    "DSV4_BACKEND": "gfx950",
    "DSV4_INDEX_HADAMARD": "1",
    "DSV4_SHADOW_RECALL": "1",
    "DSV4_INDEXER_TIMING": "100",
    "DSV4_INVARIANT_ROWS": "0",
}
ELSEWHERE = {
    "DSV4_PAGE8": "test_page8_reaches_the_command_of_a_model_that_has_it",
    "DSV4_SELFTEST": "test_serve_lifecycle",
    "DSV4_ENGINE_PYTHON": "test_serve_sglang_command",
    "DSV4_NODES": "test_serve_nodes",
    "DSV4_NODE_RANK": "test_serve_nodes",
    "DSV4_NODE_ADDRESS": "test_serve_nodes",
    "DSV4_RANKS_PORT": "test_serve_ranks",
    "DSV4_RANKS_KEY_FILE": "test_serve_ranks",
    "DSV4_PROFILE": "test_serve_profiles",
    "DSV4_API_KEYS_FILE": "test_serve_gate",
    "DSV4_HICACHE_HOST_BYTES": "test_serve_tiers",
    "DSV4_HICACHE_DISK_DIR": "test_serve_tiers",
    "DSV4_HICACHE_DISK_BYTES": "test_serve_tiers",
    "DSV4_HICACHE_WRITE_POLICY": "test_serve_tiers",
    "DSV4_ALLOW_FALLBACK": "test_fallback_must_be_permitted",
}


def test_every_toggle_is_tested_for_an_effect() -> None:
    assert {*COMMAND_TOGGLES, *REFUSED_TOGGLES, *ELSEWHERE} == set(BY_NAME)


@pytest.mark.parametrize(("name", "value"), COMMAND_TOGGLES.items())
def test_flipping_it_changes_the_command(name: str, value: str) -> None:
    before = make_plan({}, {}).describe()["command"]
    assert make_plan({name: value}, {}).describe()["command"] != before
    assert make_plan({}, {name: value}).describe()["command"] != before


@pytest.mark.parametrize(("name", "value"), REFUSED_TOGGLES.items())
def test_what_the_engine_cannot_do_is_refused_not_ignored(name: str, value: str) -> None:
    with pytest.raises(PreflightError, match=rf"{name}={value} \(environment\): engine 'embedded' cannot do this"):
        make_plan({name: value}, {})


def test_page8_reaches_the_command_of_a_model_that_has_it() -> None:
    commands = [make_plan({}, {"DSV4_PROFILE": "tiny-v41", "DSV4_PAGE8": on}).describe()["command"] for on in "10"]
    assert ["--page8" in command for command in commands] == [True, False]


def test_fallback_must_be_permitted() -> None:
    with pytest.raises(PreflightError, match="or --allow-fallback, to serve without"):
        make_plan({"DSV4_BACKEND": "gfx950"}, {})
    plan = make_plan({"DSV4_BACKEND": "gfx950"}, {"DSV4_ALLOW_FALLBACK": "1"})
    assert plan.warnings == (
        "DSV4_BACKEND=gfx950 (environment): engine 'embedded' cannot do this; it accepts auto, reference; "
        "serving without, as --allow-fallback permits",
    )


def test_a_fallback_never_covers_what_changes_the_deployment() -> None:
    with pytest.raises(PreflightError, match="DSV4_TP=2"):
        make_plan({"DSV4_TP": "2"}, {"DSV4_ALLOW_FALLBACK": "1"})
