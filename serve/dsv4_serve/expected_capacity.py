"""Puts the planner's expectation of the engine's pools beside what the engine will report."""

from __future__ import annotations

from pathlib import Path

from dsv4_serve.errors import CommandError
from dsv4_serve.logs import log
from dsv4_serve.metrics.registry import LauncherMetrics
from dsv4_serve.plan_command import config_path
from dsv4_serve.planner.expected import expected_capacity
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.profiles.schema import Profile


def show_expected(metrics: LauncherMetrics, profile: Profile, model_dir: Path) -> None:
    """From the model's own config.json, or the geometry that comes with it; absent, with a line, when none is known."""
    own = model_dir / "config.json"
    try:
        geometry = ModelGeometry.read(own if own.is_file() else config_path(profile.model))
        metrics.expect(expected_capacity(profile, geometry, model_dir))
    except CommandError as error:
        log.info("no expected capacity is shown: %s", error)
