"""From what was asked for to what will run: profile, toggles, engine, command. Pure but for reading files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv4_serve.engine_variables.check import EngineVariables, check_variables
from dsv4_serve.engine_variables.vllm_check import check_vllm_variables
from dsv4_serve.engines.base import EngineAdapter, EngineRun, check_toggles
from dsv4_serve.engines.select import ADAPTERS
from dsv4_serve.manifest import describe_flags, redact_command, redact_environment
from dsv4_serve.models import model_directory
from dsv4_serve.nodes import refuse_wrong_nodes
from dsv4_serve.profiles.load import apply, load_profile
from dsv4_serve.profiles.schema import Profile
from dsv4_serve.resolve import Resolved, resolve, settle

# A dry run knows every word of the engine's command but the port, which is drawn at start.
UNDRAWN_PORT = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A profile with every toggle in its field, the toggles with their origins, and warnings of fallbacks."""

    profile: Profile
    resolved: Resolved
    warnings: tuple[str, ...]
    variables: EngineVariables = field(default_factory=EngineVariables)

    @property
    def remarks(self) -> list[str]:
        """What the log should hold: nothing that was asked for is missing."""
        passed = [f"{name}: not one of ours, passed on to the engine as it is" for name in self.variables.unmanaged]
        return [*self.variables.notes, *passed]

    def describe(self) -> dict[str, Any]:
        """What --dry-run prints."""
        adapter = ADAPTERS[self.profile.engine.name](EngineRun(model_directory(self.profile.model), UNDRAWN_PORT))
        return {
            "profile": self.profile.name,
            "model": str(model_directory(self.profile.model)),
            "engine": adapter.name,
            "command": redact_command(adapter.command(self.profile)),
            "environment": redact_environment(adapter.environment(self.profile)),
            "flags": describe_flags(self.resolved),
            "unmanaged": list(self.variables.unmanaged),
            "notes": list(self.variables.notes),
            "warnings": list(self.warnings),
        }


def make_plan(environ: Mapping[str, str], cli: Mapping[str, str]) -> Plan:
    """Resolve everything. UsageError: it cannot be asked for; PreflightError: it cannot be served here."""
    # The profile is itself a toggle: settled first, without the values that it will contribute, which may well resolve
    # what looks like a conflict without them.
    chosen = settle({}, environ, cli).text("DSV4_PROFILE")
    profile = load_profile(chosen)
    resolved = resolve(profile.toggles(), environ, cli)
    refuse_wrong_nodes(resolved)
    adapter = ADAPTERS[profile.engine.name](EngineRun(Path(), UNDRAWN_PORT))
    accepted = check_toggles(adapter, resolved)
    applied = apply(profile, resolved)
    return Plan(applied, resolved, accepted.warnings, _variables(adapter, applied, resolved, environ))


def _variables(
    adapter: EngineAdapter, profile: Profile, resolved: Resolved, environ: Mapping[str, str]
) -> EngineVariables:
    python = resolved["DSV4_ENGINE_PYTHON"]
    if adapter.name == "vllm":
        return check_vllm_variables(environ, adapter.environment(profile), None if python is None else str(python))
    if adapter.name != "sglang":
        return EngineVariables()
    return check_variables(
        environ,
        adapter.environment(profile),
        adapter.command(profile),
        {name: setting.value for name, setting in resolved.settings.items()},
        profile.hardware.arch,
        None if python is None else str(python),
    )
