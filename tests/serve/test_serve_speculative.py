"""DSV4_SPECULATIVE: each engine takes the drafts that it has and refuses the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.embedded.args import parse_args
from dsv4_serve.engines.embedded.dspark.tiny import write_tiny_drafter
from dsv4_serve.engines.embedded.tiny import write_tiny_model
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.engines.sglang_command import SPECULATIVE
from dsv4_serve.errors import PreflightError, UsageError
from dsv4_serve.plan import make_plan
from dsv4_serve.plan_command import plan_for
from dsv4_serve.planner.memory_plan import Machine
from dsv4_serve.preflight.machine import Machine as Host
from dsv4_serve.preflight.memory import memory_checks

ADAPTER = EmbeddedAdapter(EngineRun(Path("/models/tiny"), 1))


def test_drafts_reach_the_embedded_engine() -> None:
    for value in ("off", "ngram", "dspark"):
        command = ADAPTER.command(make_plan({"DSV4_SPECULATIVE": value}, {}).profile)
        assert parse_args(command[3:]).engine.speculative == value


def test_drafts_that_are_not_in_effect_fail_the_start() -> None:
    asked = make_plan({}, {"DSV4_SPECULATIVE": "ngram"}).profile
    assert "speculative: asked was ngram, in effect is off" in ADAPTER.differences(asked, {"speculative": "off"})


@pytest.mark.parametrize(
    ("profile", "value", "accepted"),
    [
        ("tiny", "eagle", "dspark, ngram, off"),
        ("v4-pro-tp8", "ngram", "dspark, eagle, off"),
        ("vllm-v4-flash-tp8", "ngram", "dspark, eagle, off"),
    ],
)
def test_drafts_that_an_engine_does_not_have_are_refused(profile: str, value: str, accepted: str) -> None:
    with pytest.raises(PreflightError, match=f"DSV4_SPECULATIVE={value} .*cannot do this; it accepts {accepted}"):
        make_plan({}, {"DSV4_PROFILE": profile, "DSV4_SPECULATIVE": value})


def test_dspark_is_for_either_generation_and_needs_its_draft_layers() -> None:
    """There are V4 checkpoints with DSpark's draft layers, and without."""
    profile = make_plan({"DSV4_PROFILE": "v4-flash-tp4", "DSV4_SPECULATIVE": "dspark"}, {}).profile
    assert SPECULATIVE[profile.speculative] == {"--speculative-algorithm": "DSPARK"}
    with pytest.raises(UsageError, match=r"DeepSeek-V4-Flash has no DSpark draft layers .*or off or eagle$"):
        plan_for(profile, Machine(gpus=4))


def test_a_plan_refuses_dspark_of_a_model_without_a_drafter_on_the_embedded_engine_too(tmp_path: Path) -> None:
    """It printed the plan of a server that does not start."""
    write_tiny_model(tmp_path / "without", family="v41")
    write_tiny_model(tmp_path / "with", family="v41")
    write_tiny_drafter(tmp_path / "with")
    asked = {"DSV4_PROFILE": "tiny-v41", "DSV4_SPECULATIVE": "dspark"}
    refused = make_plan({}, asked | {"DSV4_MODEL": str(tmp_path / "without")}).profile
    with pytest.raises(UsageError, match=r"without/config.json has to have dspark_target_.* or off or ngram$"):
        plan_for(refused, Machine())
    (check,) = memory_checks(refused, Host(tmp_path, None, 0))
    assert (check.name, check.level) == ("host memory", "fail")
    there = plan_for(make_plan({}, asked | {"DSV4_MODEL": str(tmp_path / "with")}).profile, Machine())
    assert there.capacity == {"fp4": 65536}
