"""`dsv4 plan`: what a profile's memory holds."""

from __future__ import annotations

import os
from pathlib import Path

from dsv4_serve.errors import CommandError
from dsv4_serve.models import model_directory, prepare_model
from dsv4_serve.plan import make_plan
from dsv4_serve.planner.geometry import ModelGeometry
from dsv4_serve.planner.memory_plan import Machine, MemoryPlan, plan_memory
from dsv4_serve.planner.quantity import parse_bytes
from dsv4_serve.profiles.load import REPOSITORY
from dsv4_serve.profiles.schema import Model, Profile

GEOMETRIES = REPOSITORY / "configs" / "models"


def plan_profile(toggles: dict[str, str], hbm: str, gpus: int | None, graphs: str) -> MemoryPlan:
    """The plan of the profile that toggles and environment choose, on machines of `gpus` with `hbm` each."""
    profile = make_plan(os.environ, toggles).profile
    return plan_for(profile, Machine(parse_bytes(hbm, "--hbm"), gpus or profile.tp, parse_bytes(graphs, "--graphs")))


def plan_for(profile: Profile, machine: Machine) -> MemoryPlan:
    return plan_memory(profile, ModelGeometry.read(config_path(profile.model)), model_directory(profile.model), machine)


def config_path(model: Model) -> Path:
    """The model's own config.json; while the model is not here yet, the geometry that comes with the distribution."""
    own = model_directory(model) / "config.json"
    if own.is_file():
        return own
    if model.tiny_seed is not None:
        return prepare_model(model) / "config.json"
    shipped = GEOMETRIES / model.name / "config.json"
    if not shipped.is_file():
        names = ", ".join(sorted(path.parent.name for path in GEOMETRIES.glob("*/config.json")))
        raise CommandError(f"model {model.name}: {own} is not there, and no geometry comes with it; there are {names}")
    return shipped
