"""DSV4_SPECULATIVE: each engine takes the drafts that it has and refuses the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.embedded.args import parse_args
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.errors import PreflightError
from dsv4_serve.plan import make_plan

ADAPTER = EmbeddedAdapter(EngineRun(Path("/models/tiny"), 1))


def test_look_up_reaches_the_embedded_engine() -> None:
    for value in ("off", "ngram"):
        command = ADAPTER.command(make_plan({"DSV4_SPECULATIVE": value}, {}).profile)
        assert parse_args(command[3:]).engine.speculative == value


def test_drafts_that_are_not_in_effect_fail_the_start() -> None:
    asked = make_plan({}, {"DSV4_SPECULATIVE": "ngram"}).profile
    assert "speculative: asked was ngram, in effect is off" in ADAPTER.differences(asked, {"speculative": "off"})


@pytest.mark.parametrize(
    ("profile", "value", "accepted"),
    [("tiny", "eagle", "ngram, off"), ("v4-pro-tp8", "ngram", "dspark, eagle, off")],
)
def test_drafts_that_an_engine_does_not_have_are_refused(profile: str, value: str, accepted: str) -> None:
    with pytest.raises(PreflightError, match=f"DSV4_SPECULATIVE={value} .*cannot do this; it accepts {accepted}"):
        make_plan({}, {"DSV4_PROFILE": profile, "DSV4_SPECULATIVE": value})
