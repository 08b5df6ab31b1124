"""What was asked for and does not run is a number in the metrics, whether it was tolerated or ended the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsv4_serve.engines.base import EngineRun
from dsv4_serve.engines.client import EngineClient
from dsv4_serve.engines.embedded_adapter import EmbeddedAdapter
from dsv4_serve.front import Front
from dsv4_serve.lifecycle import Lifecycle
from dsv4_serve.metrics.registry import LauncherMetrics
from dsv4_serve.plan import make_plan
from dsv4_serve.settings import ServeSettings
from dsv4_serve.startup import EngineNotReadyError, verify_effective
from serve.harness import Launcher

NAME = "dsv4_requested_not_effective"


class Reporting(EmbeddedAdapter):
    """The embedded engine's adapter with a given report of what runs."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__(EngineRun(Path("/m"), 1))
        self._report = report

    async def effective(self, client: EngineClient) -> dict[str, Any]:
        return self._report


def front(toggles: dict[str, str], **report: Any) -> Front:
    plan = make_plan({}, {"DSV4_PROFILE": "tiny", **toggles})
    runs = {"model": "dsv4-tiny", "indexer_dtype": "fp4", "kv_dtype": "v4", "context_length": 4096}
    runs |= {"hicache": False, "speculative": "off", **report}
    settings = ServeSettings(profile=plan.profile, resolved=plan.resolved)
    return Front(settings, Reporting(runs), EngineClient(1), Lifecycle(), LauncherMetrics(), plan.warnings)


def value(of: Front) -> float | None:
    return of.metrics.registry.get_sample_value(NAME)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("toggles", "report", "expected"),
    [
        ({}, {}, 0),
        # Dropped before the start, because this engine cannot do it.
        ({"DSV4_ALLOW_FALLBACK": "1", "DSV4_BACKEND": "gfx950"}, {}, 1),
        # Accepted, and another backend than the one asked for serves an operation all the same.
        (
            {"DSV4_ALLOW_FALLBACK": "1", "DSV4_BACKEND": "reference"},
            {"backends": [{"op": "topk", "selected": "portable", "reason": "known answer differs"}]},
            1,
        ),
    ],
)
async def test_tolerated_ones_are_counted(toggles: dict[str, str], report: dict[str, Any], expected: int) -> None:
    made = front(toggles, **report)
    assert value(made) is None
    await verify_effective(made)
    assert value(made) == expected


@pytest.mark.asyncio
async def test_what_ends_the_start_is_counted_too() -> None:
    made = front({}, indexer_dtype="fp8", kv_dtype="bf16")
    with pytest.raises(EngineNotReadyError, match="indexer_dtype: asked was fp4, in effect is fp8"):
        await verify_effective(made)
    assert value(made) == 2


def test_a_server_says_zero_once_it_was_checked(launcher: Launcher) -> None:
    assert f"{NAME} 0.0" in launcher.get("/metrics").text
